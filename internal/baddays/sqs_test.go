package baddays_test

import "testing"

// sqsDays are the rows under "Amazon SQS" in docs/bad-days.md. Each day has a file of its own.
var sqsDays = []day{}

func TestSQS(t *testing.T) { runDays(t, "Amazon SQS", sqsDays) }
