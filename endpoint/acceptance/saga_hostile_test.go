package acceptance_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// crossed adds two sagas with one instance each, which each message changes: one type of message
// changes the left one first, the other type the right one. Messages of two processes therefore
// wait for each other's record.
func crossed(cfg *endpoint.Config) {
	both := func(name string) []endpoint.Handler {
		return saga.New(name,
			saga.Start(func(placeOrder) string { return "100%_'\x00" }, func(_ context.Context, c *saga.Context[counted], _ placeOrder) error {
				c.State.N++
				return nil
			}),
			saga.Start(func(orderAccepted) string { return "100%_'\x00" }, func(_ context.Context, c *saga.Context[counted], _ orderAccepted) error {
				c.State.N++
				return nil
			})).Handlers()
	}
	left, right := both("left"), both("right")
	cfg.Handlers = append(cfg.Handlers, left[0], right[0], right[1], left[1])
}

// exact checks that each saga has counted each message once, and has one instance.
func (h *troubled) exact() {
	h.t.Helper()
	rows, err := h.sql.Query(h.t.Context(), `SELECT (state->>'N')::int FROM holdfast_state ORDER BY kind`)
	must(h.t, err)
	sums, err := pgx.CollectRows(rows, pgx.RowTo[int])
	must(h.t, err)
	if len(sums) != 2 || sums[0] != 2*h.sent || sums[1] != 2*h.sent {
		h.t.Errorf("the instances have counted %d messages, want %d in each of 2", sums, 2*h.sent)
	}
}

// Two processes change the same two instances in opposite order: the server ends deadlocks, none of
// which is a failure.
func TestSagasInOppositeOrderFailNoMessage(t *testing.T) {
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			server := brokertest.Postgres(t)
			url := strings.ReplaceAll(with(t, server, "default_transaction_isolation", level), "+", "%20")
			h := troubledAt(t, server, url, crossed)
			second := h.cfg
			second.Instance, second.Outbox = "second", &postgres.Transport{URL: url, Lease: troubleLease}
			start(t, second)
			h.send(20)
			h.arrived()
			h.exact()
		})
	}
}

// Whatever happens to the table of records for a while, no message fails and each is counted once.
func TestTroubleWithRecordsUsesUpNoRetry(t *testing.T) {
	for name, c := range map[string]struct{ begin, end, reason string }{
		"no right to read":   {`REVOKE SELECT ON holdfast_state FROM $user`, `GRANT SELECT ON holdfast_state TO $user`, "permission denied for table holdfast_state"},
		"no right to insert": {`REVOKE INSERT ON holdfast_state FROM $user`, `GRANT INSERT ON holdfast_state TO $user`, "permission denied for table holdfast_state"},
		"no right to update": {`REVOKE UPDATE ON holdfast_state FROM $user`, `GRANT UPDATE ON holdfast_state TO $user`, "permission denied for table holdfast_state"},
		"no table":           {`ALTER TABLE holdfast_state RENAME TO away`, `ALTER TABLE away RENAME TO holdfast_state`, "holdfast_state"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, user := servedBy(t, func(cfg *endpoint.Config, db *postgres.Transport) {
				asOutbox(cfg, db)
				if len(cfg.Handlers) == 2 {
					crossed(cfg)
				}
			})
			h.send(2)
			h.arrived()
			h.exec(strings.ReplaceAll(c.begin, "$user", user))
			h.send(3)
			h.await("the reason is reported", func() bool {
				return strings.Contains(strings.Join(h.e.Health().Reasons, "; "), c.reason)
			})
			h.exec(strings.ReplaceAll(c.end, "$user", user))
			h.send(1)
			h.arrived()
			h.exact()
			h.await("the endpoint is ready again", func() bool { return h.e.Health().Ready })
		})
	}
}

// Another session holds the rows for longer than a statement waits for them, and the sessions are
// ended meanwhile.
func TestARecordThatAnotherSessionHolds(t *testing.T) {
	for name, end := range map[string]func(h *troubled){"rolled back": func(*troubled) {}, "sessions ended": (*troubled).endSessions} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := brokertest.Postgres(t)
			h := troubledAt(t, server, server, crossed)
			h.send(1)
			h.arrived()
			holder, err := pgx.Connect(t.Context(), server)
			must(t, err)
			tx, err := holder.Begin(t.Context())
			must(t, err)
			_, err = tx.Exec(t.Context(), `SELECT 1 FROM holdfast_state FOR UPDATE`)
			must(t, err)
			h.send(5)
			// The wait is a constant of the product: until the first statement fails, and the next
			// one waits.
			<-time.After(tablequeue.RecordWait * 3 / 2)
			end(h)
			_ = tx.Rollback(t.Context())
			_ = holder.Close(t.Context())
			h.send(1)
			h.arrived()
			h.exact()
		})
	}
}
