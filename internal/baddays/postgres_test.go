package baddays_test

import "testing"

// postgresDays are the rows under "PostgreSQL" in docs/bad-days.md. Each day has a file of its own.
var postgresDays = []day{
	{name: "a burst after an idle time", run: postgresBurst},
	{name: "many endpoints, one of them locked", run: manyEndpoints},
}

func TestPostgres(t *testing.T) { runDays(t, "PostgreSQL", postgresDays) }
