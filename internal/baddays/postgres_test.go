package baddays_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
)

// postgresDays are the rows under "PostgreSQL" in docs/bad-days.md. Each day has a file of its own.
var postgresDays = []day{
	{name: "a burst after an idle time", run: postgresBurst},
	{name: "many endpoints, one of them locked", run: manyEndpoints},
	{name: "One destination's table is locked", run: postgresLocked(endpoint.ReceiveOnly)},
	{name: "One destination's table is locked, handlers in transactions", run: postgresLocked(endpoint.SendsAtomicWithReceive)},
	{name: "Some messages go to a queue that does not exist", run: postgresMissing},
	{name: "A subscriber's table is dropped", run: postgresDropped},
	{name: "Headers that cannot be decoded", run: postgresHeaders},
}

func TestChaosDaysOfPostgreSQL(t *testing.T) { runDays(t, "PostgreSQL", postgresDays) }
