package postgres

import "github.com/jackc/pgx/v5"

// reported are the settings whose changes the server reports to its client (PostgreSQL 18,
// "Asynchronous Operations"), except those that only the server changes. Older servers report some
// of them.
var reported = [...]string{
	"application_name", "client_encoding", "DateStyle", "default_transaction_read_only", "IntervalStyle", "is_superuser",
	"search_path", "session_authorization", "standard_conforming_strings", "TimeZone",
}

// reports are the values of reported in a session; empty where the server reports none.
type reports [len(reported)]string

func reportsOf(conn *pgx.Conn) (r reports) {
	for i, name := range reported {
		r[i] = conn.PgConn().ParameterStatus(name)
	}
	return r
}

// compare notes a setting that a handler's transaction has left in its session and that no
// statement shows, as by a function.
func (t *traces) compare(before reports, conn *pgx.Conn) {
	if t.left != "" || conn.IsClosed() {
		return
	}
	for i, value := range reportsOf(conn) {
		if value != before[i] {
			t.left = "SET " + reported[i] + " in a function"
			return
		}
	}
}
