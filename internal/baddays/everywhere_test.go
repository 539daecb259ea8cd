package baddays_test

import "testing"

// everywhereDays are the rows under "Every transport" in docs/bad-days.md. Each day has a file of its own.
var everywhereDays = []day{
	{name: "A queue of the largest messages", run: largeMessages},
	{name: "Two versions of Holdfast on one queue", long: true, run: twoVersions},
}

func TestEveryTransport(t *testing.T) { runDays(t, "Every transport", everywhereDays) }
