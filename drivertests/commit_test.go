package drivertests

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
)

// Messages that are sent in a transaction arrive once, after the commit.
func TestSendsInATransactionArriveOnceAfterTheCommit(t *testing.T) {
	t.Parallel()
	eachLibrary(t, func(t *testing.T, s *shop, begin library) {
		for n, commit := range []bool{true, false, true, false} {
			tx := s.begin(begin, nil)
			must(t, tx.exec(`INSERT INTO rows VALUES (1)`))
			must(t, s.send(tx.tx, fmt.Sprint(n)))
			if commit {
				must(t, tx.commit())
			} else {
				must(t, tx.rollback())
			}
		}
		s.arrives(begin, "0", "2")
	})
}

// The rows of a transaction are in the order of the sends. The endpoint sends them in the order of
// the rows: endpoint/TestAnOutboxKeepsTheOrderAndTheHeadersOfSends.
func TestSendsInOneTransactionKeepTheirOrder(t *testing.T) {
	t.Parallel()
	eachLibrary(t, func(t *testing.T, s *shop, begin library) {
		tx := s.begin(begin, nil)
		var bodies []string
		for n := range 50 {
			bodies = append(bodies, fmt.Sprintf("body-%d;", n))
			if n%10 == 9 {
				must(t, s.web.Publish(t.Context(), placed{[]byte(bodies[n])}, endpoint.In(tx.tx)))
			} else {
				must(t, s.send(tx.tx, bodies[n]))
			}
		}
		must(t, tx.exec(fmt.Sprintf(rowsAre, strings.Join(bodies, ""))))
		must(t, tx.commit())
		s.arrives(begin, bodies...)
	})
}

// rowsAre is a statement that fails unless the transaction's rows in the outbox have these bodies,
// in order. A row has further bytes before its body.
const rowsAre = `DO $$ DECLARE found text; BEGIN
	SELECT string_agg(substring(encode(body, 'escape') FROM 'body-[0-9]+;'), '' ORDER BY visible_at, seq) INTO found FROM "web.outbox"
		WHERE xmin::text::bigint = mod(txid_current(), 4294967296);
	IF found IS DISTINCT FROM '%s' THEN RAISE 'the rows are %%', found; END IF;
END $$`

// No message of the transaction waits for a delayed message, and the delayed message is not
// delivered early.
func TestADelayedSendArrivesNoSooner(t *testing.T) {
	t.Parallel()
	eachLibrary(t, func(t *testing.T, s *shop, begin library) {
		const delay = 300 * time.Millisecond
		tx := s.begin(begin, nil)
		began := time.Now()
		must(t, s.send(tx.tx, "never", endpoint.After(time.Hour)))
		must(t, s.send(tx.tx, "delayed", endpoint.After(delay)))
		must(t, s.send(tx.tx, "at once"))
		must(t, tx.commit())
		// A busy machine may commit after the delay: then both messages are due.
		var got []string
		for _, m := range s.receive(2) {
			got = append(got, string(m.Body))
		}
		slices.Sort(got)
		if want := []string{"at once", "delayed"}; !slices.Equal(got, want) {
			t.Errorf("%q have arrived, want %q", got, want)
		}
		if took := time.Since(began); took < delay {
			t.Errorf("the delayed message has arrived after %v", took)
		}
	})
}

// oddHeaders are values that a literal, an array or JSON would have to escape.
var oddHeaders = map[string]string{
	"quotes": `"'{}\,`, "dollar": "$1 $2 ? ?? @p1 :name", "tab": "a\tb\r\nc", "empty": "", "text": "äöü 漢字 \U0001f600",
	"control": "\x01\x7f", "escape": `\x00 \u0000 E'\''`, `odd "name" $3`: "value",
}

func TestBodiesAndHeadersArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	large := make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(large) // it does not fail
	var every []byte
	for b := range 256 {
		every = append(every, byte(b))
	}
	bodies := []string{"", "\x00", string(every), `\x41 $1 '`, `{"a":"\u0000"}`, strings.Repeat("$1'\\", 100), string(large)}
	eachLibrary(t, func(t *testing.T, s *shop, begin library) {
		for _, body := range bodies {
			tx := s.begin(begin, nil)
			var opts []endpoint.SendOption
			for name, value := range oddHeaders {
				opts = append(opts, endpoint.Header(name, value))
			}
			must(t, s.send(tx.tx, body, append(opts, endpoint.MessageID("id '$1'"))...))
			must(t, tx.commit())
			m := s.receive(1)[0]
			if string(m.Body) != body {
				t.Errorf("a body of %d bytes has arrived as %d: %x, want %x", len(body), len(m.Body), sha256.Sum256(m.Body), sha256.Sum256([]byte(body)))
			}
			for name, want := range oddHeaders {
				if got, ok := m.Headers.Lookup(name); got != want || !ok {
					t.Errorf("header %q is %q, want %q", name, got, want)
				}
			}
			if id := m.Headers.Get(header.MessageID); id != "id '$1'" {
				t.Errorf("the id is %q", id)
			}
		}
	})
}

func TestASerializableTransactionIsOneToSendIn(t *testing.T) {
	t.Parallel()
	eachLibrary(t, func(t *testing.T, s *shop, begin library) {
		tx := s.begin(begin, &sql.TxOptions{Isolation: sql.LevelSerializable})
		must(t, s.send(tx.tx, "1"))
		must(t, s.send(tx.tx, "2"))
		must(t, tx.commit())
		s.arrives(begin, "1", "2")
	})
}

// With the context of Send ended nothing is written, and the transaction, which has a context of
// its own, goes on.
func TestAContextThatHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	eachLibrary(t, func(t *testing.T, s *shop, begin library) {
		tx := s.begin(begin, nil)
		must(t, s.send(tx.tx, "1"))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.web.Send(ended, order{[]byte("late")}, endpoint.In(tx.tx)); !isCancelled(err) {
			t.Errorf("error %v, want that the context has ended", err)
		}
		must(t, s.send(tx.tx, "2"))
		must(t, tx.commit())
		s.arrives(begin, "1", "2")
	})
}
