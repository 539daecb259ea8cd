package baddays_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
)

// postgresDays are the rows under "PostgreSQL" in docs/bad-days.md. Each day has a file of its own.
var postgresDays = []day{
	{name: "a burst after an idle time", run: postgresBurst},
	{name: "many endpoints, one of them locked", run: manyEndpoints},
	{name: "One destination's table is locked", run: postgresLocked(endpoint.ReceiveOnly)},
	{name: "One destination's table is locked, handlers in transactions", run: postgresLocked(endpoint.SendsAtomicWithReceive)},
	{name: "A trigger of one destination waits for a locked row, 1 % of the messages", run: postgresTrigger(endpoint.ReceiveOnly, 1)},
	{name: "A trigger of one destination waits for a locked row, 20 % of the messages", run: postgresTrigger(endpoint.ReceiveOnly, 20)},
	{name: "A trigger of one destination waits for a locked row, handlers in transactions", run: postgresTrigger(endpoint.SendsAtomicWithReceive, 1)},
	{name: "Some messages go to a queue that does not exist", run: postgresMissing},
	{name: "A subscriber's table is dropped", run: postgresDropped},
	{name: "Headers that cannot be decoded", run: postgresHeaders},
	{name: "The server's clock is set back by an hour", run: postgresClock(-time.Hour)},
	{name: "The server's clock is set forward by an hour", run: postgresClock(time.Hour)},
}

func TestChaosDaysOfPostgreSQL(t *testing.T) { runDays(t, "PostgreSQL", postgresDays) }
