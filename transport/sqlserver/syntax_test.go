package sqlserver

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/sqlc-dev/teesql/parser"
)

// parsed is how many statements of T-SQL a text has. The parser is not the server's; it knows
// neither tables nor what a hint allows.
func parsed(text string) (n int, err error) {
	script, err := parser.Parse(context.Background(), strings.NewReader(text))
	if err != nil {
		return 0, err
	}
	for _, b := range script.Batches {
		n += len(b.Statements)
	}
	return n, nil
}

// TestStatementsAreTSQL reads the reviewed statements by a grammar. What it does not take as one
// statement it may take as several, so they are counted: one each, and those that end with a
// semicolon before.
func TestStatementsAreTSQL(t *testing.T) {
	text, err := os.ReadFile("testdata/statements.sql")
	ok(t, err)
	seen := 0
	for _, part := range strings.Split("\n\n"+string(text), "\n\n-- ")[1:] {
		name, statement, _ := strings.Cut(part, "\n")
		if strings.HasSuffix(name, " quoted") {
			continue // a name
		}
		seen++
		n, err := parsed(statement)
		if err != nil {
			t.Errorf("%s: %v:\n%s", name, err, statement)
		}
		if want := statements(statement); n != want {
			t.Errorf("%s: %d statements, want %d:\n%s", name, n, want, statement)
		}
	}
	if seen < 50 {
		t.Errorf("only %d statements were read", seen)
	}
}

// statements is how many text is meant to have: what begins on a line of its own, after the end of
// another.
func statements(text string) (n int) {
	ended := true
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if ended && !strings.HasPrefix(line, "\t") && line != "END" {
			n++
		}
		ended = strings.HasSuffix(line, ";")
	}
	return n
}

func TestSyntaxThatIsWrongIsFound(t *testing.T) {
	for _, text := range []string{
		"SELECT a FROM q LIMIT 1", "SELECT a <= b FROM q", "SELECT CASE WHEN a = 1 THEN 2 FROM q", "SELECT count(* FROM q",
		"UPDATE q WITH (ROWLOCK) WHERE a = 1 SET b = 2", "INSERT INTO q (a VALUES (1)", "SELECT a FROM q WITH (READPASTT)",
	} {
		if n, err := parsed(text); err == nil {
			t.Errorf("%q was taken for %d statements", text, n)
		}
	}
	for _, text := range []string{"DELETE FROM q WHERE a = 1 RETURNING b", "SELECT a FROM q FOR UPDATE SKIP LOCKED"} {
		if n, err := parsed(text); err == nil && n == statements(text) {
			t.Errorf("%q was taken for T-SQL", text)
		}
	}
}
