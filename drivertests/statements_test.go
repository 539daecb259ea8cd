package drivertests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
)

// The first send of a process and later ones execute one INSERT in the transaction, and no other
// statement: whatever is sent, with any library.
func TestATransactionGetsOneInsertAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, open := range libraries() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			seen := record(t, s.url)
			begin := open(t, seen.url(t, s.url))
			for n := range 3 {
				tx := s.begin(begin, nil)
				must(t, tx.exec(`INSERT INTO rows VALUES (1)`))
				seen.take()
				for kind, send := range map[string]func() error{
					"send":    func() error { return s.send(tx.tx, "1") },
					"delayed": func() error { return s.send(tx.tx, "1", endpoint.After(1)) },
					"expires": func() error { return s.send(tx.tx, "1", endpoint.ExpireAfter(patience)) },
					"publish": func() error { return s.web.Publish(t.Context(), placed{[]byte("1")}, endpoint.In(tx.tx)) },
				} {
					must(t, send())
					if got := seen.take(); len(got) != 1 || !strings.HasPrefix(got[0], `INSERT INTO "public"."web.outbox" `) {
						t.Errorf("transaction %d, %s: the statements are %q, want one INSERT", n+1, kind, got)
					}
				}
				must(t, tx.commit())
				if got := seen.take(); len(got) != 1 || !strings.EqualFold(strings.TrimSuffix(got[0], ";"), "commit") {
					t.Errorf("transaction %d ends with %q, want the commit alone", n+1, got)
				}
			}
		})
	}
}

// The recorder sees what a library executes by any way of the protocol.
func TestTheRecorderSeesStatements(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for name, open := range libraries() {
		seen := record(t, s.url)
		tx := s.begin(open(t, seen.url(t, s.url)), nil)
		seen.take()
		for n := range 3 {
			text := fmt.Sprintf(`INSERT INTO rows VALUES (%d)`, n%2)
			must(t, tx.exec(text))
			if got := seen.take(); len(got) != 1 || got[0] != text {
				t.Errorf("%s: recorded %q, want %q", name, got, text)
			}
		}
		must(t, tx.rollback())
	}
}
