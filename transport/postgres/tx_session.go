package postgres

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// traces records what the statements of a transaction leave in their session: settings, locks,
// temporary tables. Such a session is closed, because the next handler would meet what is left.
type traces struct {
	left string // the keyword of the first statement that leaves something, or empty
	by   string // the function that executed the statement
	role bool   // the transaction has another role than the session: the engine's statements need that of the session

	ended bool // a statement has ended the transaction, after which another one may have begun
}

// note records what statements of a handler leave in the session, or for the engine's statements in
// the transaction. What a function or a DO block does is not seen.
func (t *traces) note(sql string) {
	if !mayLeave(sql) {
		return
	}
	s := statementWords{sql: sql}
	for body, more := false, true; more; {
		var words []string
		words, more = s.next()
		if body { // of a function, which does not run now
			body = word(words, 0) != "END"
			continue
		}
		body = hasBody(words)
		if t.left == "" {
			if t.left = leaves(words); t.left != "" {
				t.by = caller()
			}
		}
		t.role = t.role || changesRole(words)
		t.ended = t.ended || ends(words)
	}
}

// takeSessionRole gives the transaction the role of the session, if the handlers have given it
// another one.
func (u *userTx) takeSessionRole(ctx context.Context) error {
	if !u.role {
		return nil
	}
	_, err := u.conn.PgConn().Exec(ctx, keepRole+";"+sessionRole).ReadAll()
	return err
}

// caller returns the first function on the stack that is neither of this package nor of pgx.
func caller() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		frame, more := frames.Next()
		if !strings.Contains(frame.Function, "/transport/postgres.") && !strings.Contains(frame.Function, "/pgx/") || !more {
			return frame.Function
		}
	}
}

// maxTold bounds how many functions are remembered whose traces the log has named.
const maxTold = 100

// told has the functions whose traces the log has named. The zero value has none. It is safe for
// concurrent use.
type told struct {
	mu    sync.Mutex // guards names
	names map[string]bool
}

// first reports whether name is new.
func (t *told) first(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.names[name] || len(t.names) >= maxTold {
		return false
	}
	if t.names == nil {
		t.names = make(map[string]bool)
	}
	t.names[name] = true
	return true
}

func (t *traces) noteAll(b *pgx.Batch) {
	for _, q := range b.QueuedQueries {
		t.note(q.SQL)
	}
}

// mayLeave reports whether sql may have a word that note looks for. It costs little where there is
// none.
func mayLeave(sql string) bool {
	begins, comment := true, false // of a statement, or of what may be one
	for i := 0; i < len(sql); i++ {
		switch c := sql[i]; {
		case c == '-':
			comment = true
		case c == ';' || c == '/' || comment && (c == '\n' || c == '\r'):
			begins, comment = true, false
		case !isWord(c): // a statement begins with its first word
		case i > 0 && isWord(sql[i-1]):
		case begins && slices.ContainsFunc(opening[c], func(w string) bool { return hasWord(sql[i:], w) }):
			return true
		case slices.ContainsFunc(telling[c], func(w string) bool { return hasWord(sql[i:], w) }):
			return true
		default:
			begins = false
		}
	}
	return false
}

// opening are the words that note looks for at the beginning of a statement, by their first letter
// in either case.
var opening = byLetter("set", "commit", "end", "rollback", "abort")

// telling are the words that note looks for everywhere, in the same way.
var telling = byLetter(
	"reset", "listen", "unlisten", "deallocate", "discard", "load", "prepare", "temp", "temporary",
	"hold", "pg_temp", "pg_advisory_lock", "pg_advisory_lock_shared", "pg_try_advisory_lock",
	"pg_try_advisory_lock_shared", "set_config",
)

func byLetter(words ...string) (sorted [256][]string) {
	for _, w := range words {
		lower, upper := w[0], w[0]-'a'+'A'
		sorted[lower], sorted[upper] = append(sorted[lower], w), append(sorted[upper], w)
	}
	return sorted
}

// hasWord reports whether sql begins with a word, in whatever case.
func hasWord(sql, word string) bool {
	n := len(word)
	return len(sql) >= n && sql[0]|0x20 == word[0] && (len(sql) == n || !continues(sql[n])) &&
		strings.EqualFold(sql[:n], word)
}

// continues reports whether c belongs to a word that has begun before.
func continues(c byte) bool { return isWord(c) || c == '$' || c >= '0' && c <= '9' }

// leaves returns the keyword of a statement that leaves something in the session beyond the
// transaction, or an empty text.
func leaves(words []string) string {
	switch word(words, 0) {
	case "SET":
		switch word(words, 1) {
		case "LOCAL", "TRANSACTION", "CONSTRAINTS":
		default:
			return "SET"
		}
	case "RESET", "LISTEN", "UNLISTEN", "DEALLOCATE", "DISCARD", "LOAD":
		return words[0]
	case "PREPARE":
		if word(words, 1) != "TRANSACTION" {
			return "PREPARE"
		}
	}
	temporary := false
	for i, w := range words {
		switch {
		case w == "TEMP" || w == "TEMPORARY":
			temporary = temporary || createsBy(words[:i])
		case w == "PG_TEMP":
			temporary = temporary || words[0] == "CREATE" || createsBy(words[:i])
		case w == "DROP" && word(words, i-1) == "COMMIT":
			temporary = false
		case w == "HOLD" && word(words, i-1) == "WITH" && words[0] == "DECLARE":
			return "WITH HOLD"
		case w == "PG_ADVISORY_LOCK", w == "PG_ADVISORY_LOCK_SHARED",
			w == "PG_TRY_ADVISORY_LOCK", w == "PG_TRY_ADVISORY_LOCK_SHARED":
			return strings.ToLower(w)
		case w == "SET_CONFIG" && !isLocal(words[i+1:]):
			return "set_config"
		}
	}
	if temporary {
		return "TEMPORARY"
	}
	return ""
}

// hasBody reports whether the statements that follow are the body of a function, up to END
// (PostgreSQL 17, "CREATE FUNCTION", sql_body).
func hasBody(words []string) bool {
	i := slices.Index(words, "ATOMIC")
	return word(words, 0) == "CREATE" && word(words, i-1) == "BEGIN"
}

// ends reports whether a statement ends its transaction.
func ends(words []string) bool {
	switch word(words, 0) {
	case "COMMIT", "END", "ABORT":
		return true
	case "PREPARE":
		return word(words, 1) == "TRANSACTION"
	case "ROLLBACK":
		if to := word(words, 1); to == "WORK" || to == "TRANSACTION" {
			return word(words, 2) != "TO"
		}
		return word(words, 1) != "TO"
	}
	return false
}

// createsBy reports whether words, which are before TEMP, create a table or a view. Otherwise TEMP
// is a name.
func createsBy(words []string) bool {
	n := len(words)
	if last := word(words, n-1); last == "LOCAL" || last == "GLOBAL" {
		n--
	}
	before := word(words, n-2)
	switch word(words, n-1) {
	case "CREATE":
		return true
	case "REPLACE":
		return before == "OR"
	case "INTO":
		return before != "INSERT" && before != "MERGE"
	}
	return false
}

// changesRole reports whether a statement may give the transaction another role, also by a setting
// whose name is not in the text.
func changesRole(words []string) bool {
	if word(words, 0) == "SET" {
		return word(words, 1) == "LOCAL" && word(words, 2) == "ROLE"
	}
	for i, w := range words {
		if setting := word(words, i+2); w == "SET_CONFIG" && (!strings.HasPrefix(setting, "'") || strings.EqualFold(setting, "'role'")) {
			return true
		}
	}
	return false
}

// isLocal reports whether the arguments of set_config that words begin with end with the literal
// true. The words have the parentheses and commas too.
func isLocal(words []string) bool {
	depth := 0
	for i, w := range words {
		switch w {
		case "(":
			depth++
		case ")":
			if depth--; depth <= 0 {
				return word(words, i-1) == "TRUE" && word(words, i-2) == ","
			}
		}
	}
	return false
}

func word(words []string, i int) string {
	if i < 0 || i >= len(words) {
		return ""
	}
	return words[i]
}

// statementWords reads the statements of a text: their words in upper case, literals as they are,
// parentheses and commas, without quoted names and comments (PostgreSQL 17, "Lexical Structure").
type statementWords struct {
	sql string
}

// next returns the words of the next statement, and whether another one follows.
func (s *statementWords) next() (words []string, more bool) {
	for s.sql != "" {
		switch c := s.sql[0]; {
		case c == ';':
			s.sql = s.sql[1:]
			return words, true
		case strings.HasPrefix(s.sql, "--"):
			s.skipLine()
		case strings.HasPrefix(s.sql, "/*"):
			s.skipComment()
		case c == '\'':
			words = append(words, s.literal(false))
		case c == '"':
			s.sql = s.sql[1:]
			s.skipTo(`"`)
			words = append(words, `""`)
		case c == '$' && s.skipDollars():
			words = append(words, "''")
		case isWord(c):
			n := 1
			for n < len(s.sql) && continues(s.sql[n]) {
				n++
			}
			words = append(words, strings.ToUpper(s.sql[:n]))
			if s.sql = s.sql[n:]; strings.HasPrefix(s.sql, "'") && words[len(words)-1] == "E" {
				words = append(words, s.literal(true))
			}
		case c == '(' || c == ')' || c == ',' || c == '$':
			words = append(words, string(c))
			s.sql = s.sql[1:]
		default:
			s.sql = s.sql[1:]
		}
	}
	return words, false
}

func isWord(c byte) bool { return c == '_' || c >= 0x80 || c|0x20 >= 'a' && c|0x20 <= 'z' }

// skipTo skips what is before the next end, and end.
func (s *statementWords) skipTo(end string) { _, s.sql, _ = strings.Cut(s.sql, end) }

// skipLine skips a comment up to the end of its line.
func (s *statementWords) skipLine() {
	if end := strings.IndexAny(s.sql, "\n\r"); end >= 0 {
		s.sql = s.sql[end:]
	} else {
		s.sql = ""
	}
}

// skipComment skips a comment, in which others may nest.
func (s *statementWords) skipComment() {
	depth := 0
	for s.sql != "" {
		switch {
		case strings.HasPrefix(s.sql, "/*"):
			depth++
			s.sql = s.sql[2:]
		case strings.HasPrefix(s.sql, "*/"):
			s.sql = s.sql[2:]
			if depth--; depth == 0 {
				return
			}
		default:
			s.sql = s.sql[1:]
		}
	}
}

// literal skips a literal, and returns it. In a literal with escapes, a backslash hides the next
// character.
func (s *statementWords) literal(escapes bool) (text string) {
	for i := 1; i < len(s.sql); i++ {
		switch {
		case escapes && s.sql[i] == '\\', strings.HasPrefix(s.sql[i:], "''"):
			i++ // the next character is part of the literal
		case s.sql[i] == '\'':
			text, s.sql = s.sql[:i+1], s.sql[i+1:]
			return text
		}
	}
	text, s.sql = s.sql, ""
	return text
}

// skipDollars skips a literal in dollar quotes. It reports false, and skips nothing, if the text
// does not begin with one.
func (s *statementWords) skipDollars() bool {
	n := strings.IndexByte(s.sql[1:], '$') + 1
	if n == 0 || strings.ContainsFunc(s.sql[1:n], func(r rune) bool { return r < 0x80 && !isWord(byte(r)) && (r < '0' || r > '9') }) ||
		n > 1 && s.sql[1] >= '0' && s.sql[1] <= '9' {
		return false
	}
	quote := s.sql[:n+1]
	s.sql = s.sql[n+1:]
	s.skipTo(quote)
	return true
}

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
