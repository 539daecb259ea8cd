package baddays_test

import "testing"

// everywhereDays are the rows under "Every transport" in docs/bad-days.md. Each day has a file of
// its own.
var everywhereDays = []day{
	{name: "A bad deployment under a rate limit", run: badDeployment},
	{name: "An outage under a rate limit", run: limitedOutage},
	{name: "A policy that moves to an own queue", run: moveToAnOwnQueue},
	{name: "A slow broker in quarantine", run: slowQuarantine},
	{name: "A queue of the largest messages", run: largeMessages},
	{name: "Two versions of Holdfast on one queue", long: true, run: twoVersions},
	{name: "A rolling deployment with sagas, jobs and an outbox", long: true, run: rolledShop},
}

func TestChaosDaysOfEveryTransport(t *testing.T) { runDays(t, "Every transport", everywhereDays) }
