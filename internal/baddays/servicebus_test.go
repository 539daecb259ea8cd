package baddays_test

import "testing"

// serviceBusDays are the rows under "Azure Service Bus" in docs/bad-days.md. Each day has a file of its own.
var serviceBusDays = []day{}

func TestServiceBus(t *testing.T) { runDays(t, "Azure Service Bus", serviceBusDays) }
