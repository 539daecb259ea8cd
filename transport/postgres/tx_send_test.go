package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/transport"
)

// What leaves one message at a time is another statement than what leaves in company, and both are
// other ones than outside a handler's transaction.
func TestWhatIsSentArrivesAsItWas(t *testing.T) {
	t.Parallel()
	empty := msg("empty")
	empty.Body = nil
	later, expiring := to("out", msg("later")), to("out", msg("expiring"))
	later.After, expiring.TTL = time.Hour, time.Hour
	plain := "a: body of a, v of a"
	for name, tt := range map[string]struct {
		ops  []transport.Operation
		want []string
	}{
		"one":                  {[]transport.Operation{to("out", msg("a"))}, []string{plain}},
		"one without a body":   {[]transport.Operation{to("out", empty)}, []string{"empty: , v of empty"}},
		"one that is delayed":  {[]transport.Operation{later}, []string{"later: body of later, v of later, delayed"}},
		"one that expires":     {[]transport.Operation{expiring}, []string{"expiring: body of expiring, v of expiring, expires"}},
		"several":              {[]transport.Operation{to("out", msg("a")), to("out", empty)}, []string{plain, "empty: , v of empty"}},
		"several, one delayed": {[]transport.Operation{to("out", msg("a")), later}, []string{plain, "later: body of later, v of later, delayed"}},
	} {
		for how, leave := range map[string]func(t *testing.T, c transport.Conn, d transport.Delivery){
			"in a transaction": func(t *testing.T, _ transport.Conn, d transport.Delivery) {
				tx, user := begun(t, d)
				_, err := user.Exec(t.Context(), "SELECT 1")
				ok(t, err)
				ok(t, tx.Complete(t.Context(), tt.ops))
			},
			"in a transaction that begins with it": func(t *testing.T, _ transport.Conn, d transport.Delivery) {
				tx, _ := begun(t, d)
				ok(t, tx.Complete(t.Context(), tt.ops))
			},
			"with the completion": func(t *testing.T, _ transport.Conn, d transport.Delivery) { ok(t, completeWith(t, d, tt.ops...)) },
			"alone": func(t *testing.T, c transport.Conn, d transport.Delivery) {
				send(t, c, tt.ops...)
				ok(t, d.Complete(t.Context()))
			},
		} {
			for _, pooled := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/pooled=%t", name, how, pooled), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, "in", "out")
					c := w.openAs(Transport{Pooled: pooled})
					send(t, c, to("in", msg("1")))
					leave(t, c, receive(t, receiver(t, c, "in"), 1)[0])
					if n := w.count("in"); n != 0 {
						t.Errorf("%d rows are left in the input", n)
					}
					if diff := cmp.Diff(tt.want, w.arrived("out")); diff != "" {
						t.Errorf("rows (-want +got):\n%s", diff)
					}
				})
			}
		}
	}
}

// arrived tells of each row of a queue what its sender chose.
func (w *world) arrived(queue string) []string {
	w.t.Helper()
	rows, err := w.sql.Query(w.t.Context(), `SELECT (headers::json ->> 'NServiceBus.MessageId') || ': ' || coalesce(convert_from(body, 'UTF8'), 'NULL') || ', ' || (headers::json ->> 'k')
	|| CASE WHEN visible_at > now() + interval '50 minutes' THEN ', delayed' ELSE '' END
	|| CASE WHEN expires > now() AT TIME ZONE 'UTC' + interval '50 minutes' THEN ', expires' ELSE '' END
FROM `+quote(w.schema, queue)+` ORDER BY 1`)
	ok(w.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	ok(w.t, err)
	return all
}
