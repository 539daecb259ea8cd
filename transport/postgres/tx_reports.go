package postgres

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

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

// reportsOf returns the reports of a session before a transaction. In the driver's own pool a session
// is read once: only handlers change the session, and the driver closes a changed session. A session
// of a caller's pool is read each time.
func reportsOf(conn *pgx.Conn, callers *pgxpool.Pool) *reports {
	session := conn.PgConn()
	r, known := session.CustomData()[reportsKey].(*reports)
	if known && callers == nil {
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

// compare notes a setting that a handler's transaction has left in its session by a function, so
// that no statement shows the setting.
func (t *traces) compare(before *reports, conn *pgx.Conn) {
	if t.left != "" || conn.IsClosed() {
		return
	}
	for i, name := range reported {
		if conn.PgConn().ParameterStatus(name) != before[i] {
			t.left = "SET " + name + " in a function (or the server's configuration was changed)"
			return
		}
	}
}
