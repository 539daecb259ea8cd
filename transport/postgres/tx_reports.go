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

// reportsKey is the key of a session's reports in pgx's data of its connection.
const reportsKey = "holdfast reports"

// reportsOf returns the reports of a session before a transaction. A session of the driver's own
// pool is read once, because only handlers change such a session, and what they change closes it.
func (s *store) reportsOf(conn *pgx.Conn) *reports {
	session := conn.PgConn()
	r, known := session.CustomData()[reportsKey].(*reports)
	if known && s.address.pool == nil {
		return r
	}
	if !known {
		r = new(reports)
		session.CustomData()[reportsKey] = r
	}
	for i, name := range reported {
		r[i] = session.ParameterStatus(name)
	}
	return r
}

// compare notes a setting that a handler's transaction has left in its session and that no
// statement shows, as by a function.
func (t *traces) compare(before *reports, conn *pgx.Conn) {
	if t.left != "" || conn.IsClosed() {
		return
	}
	for i, name := range reported {
		if conn.PgConn().ParameterStatus(name) != before[i] {
			t.left = "SET " + name + " in a function"
			return
		}
	}
}
