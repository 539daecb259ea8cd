package acceptance_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// spoiling are statements of handlers after which the engine's own statements fail, or mean
// something else.
var spoiling = []string{
	`SET LOCAL ROLE %[1]s`,
	`SET ROLE %[1]s`,
	`SET SESSION AUTHORIZATION %[1]s`,
	`SET LOCAL search_path = ''`,
	`SET LOCAL statement_timeout = 1`,
	`SET LOCAL transaction_read_only = on`,
	`CREATE TEMPORARY TABLE "sales.outbox" (n int)`,
	`SELECT pg_terminate_backend(pg_backend_pid())`,
	`ROLLBACK`,
	`COMMIT`,
	`ROLLBACK; BEGIN`,
	`COMMIT; BEGIN`,
}

// A handler that spoils its transaction fails by itself: its message ends, other messages are
// handled, and the endpoint is ready.
func TestHandlersThatSpoilTheirTransaction(t *testing.T) {
	for _, mode := range []string{"outbox", "atomic", "atomic without inbox"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := brokertest.Postgres(t)
			var calls atomic.Int64
			h := troubledAt(t, url, url, func(cfg *endpoint.Config) {
				cfg.Handlers = append(cfg.Handlers, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o shipOrder) error {
					calls.Add(1)
					tx, err := postgres.Tx(ctx, s)
					if err != nil {
						return err
					}
					statement, ignore := strings.CutPrefix(o.ID, "ignore ")
					for one := range strings.SplitSeq(statement, "; ") {
						if _, err := tx.Exec(ctx, one); err != nil && !ignore {
							return err
						}
					}
					return s.Send(ctx, orderAccepted{"spoiled"}, endpoint.To("error"))
				}))
				cfg.Outbox = &postgres.Transport{URL: url, Lease: time.Minute} // no process is killed
				if mode != "outbox" {
					db := &postgres.Transport{URL: url, Lease: time.Minute}
					cfg.Transport, cfg.Outbox, cfg.Transactions = db, nil, endpoint.SendsAtomicWithReceive
					cfg.Routes[0] = endpoint.RouteTo[shipOrder]("error")
				}
				if mode == "atomic" {
					cfg.Remember = 24 * time.Hour
				}
			})
			role := fmt.Sprintf("spoiler_%d", time.Now().UnixNano())
			h.exec("CREATE ROLE " + role)
			h.dropsRole(role)
			n := 0
			for _, statement := range spoiling {
				if strings.Contains(statement, "%[1]s") {
					statement = fmt.Sprintf(statement, role)
				}
				for _, prefix := range []string{"", "ignore "} {
					h.e.send(shipOrder{prefix + statement}, endpoint.To("sales"))
					n++
				}
			}
			h.send(3)
			h.await("the others are handled", func() bool { return h.rows() == 3 })
			want := n
			if mode != "outbox" {
				want += 2 * h.sent // what the others send
			}
			h.await("the messages have ended", func() bool { return h.failed() == want })
			if reasons := h.e.Health().Reasons; len(reasons) > 0 {
				t.Errorf("the endpoint is not well: %q", reasons)
			}
			if n := calls.Load(); n > int64(len(spoiling)*2*12) {
				t.Errorf("%d calls of the handler", n)
			}
			texts := h.failures()
			for _, want := range []string{"COMMIT or ROLLBACK", "breaks at each attempt", "RESET ROLE"} {
				if mode != "atomic without inbox" && !strings.Contains(texts, want) {
					t.Errorf("no failure has the text %q:\n%s", want, texts)
				}
			}
		})
	}
}

// A message whose state cannot be loaded, because an earlier handler has changed the transaction or
// its time is over, fails by itself: other messages are handled, and the endpoint is ready.
func TestLoadsInASpoiledTransaction(t *testing.T) {
	t.Parallel()
	url := brokertest.Postgres(t)
	h := troubledAt(t, url, url, func(cfg *endpoint.Config) {
		cfg.HandlerTimeout = time.Second
		cfg.Handlers = append(cfg.Handlers, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o shipOrder) error {
			tx, err := postgres.Tx(ctx, s)
			if err == nil {
				_, err = tx.Exec(ctx, o.ID)
			}
			return err
		}))
		cfg.Handlers = append(cfg.Handlers, saga.New("ships", saga.Start(func(o shipOrder) string { return o.ID },
			func(_ context.Context, c *saga.Context[counted], _ shipOrder) error { c.State.N++; return nil })).Handlers()...)
	})
	role := fmt.Sprintf("loader_%d", time.Now().UnixNano())
	h.exec("CREATE ROLE " + role)
	h.dropsRole(role)
	fail := []string{"SET ROLE " + role, "SET SESSION AUTHORIZATION " + role, "SET TRANSACTION READ ONLY", "SELECT 'held'"}
	h.e.send(shipOrder{"SELECT 'held'"}, endpoint.To("sales"))
	h.await("there is a state", func() (one bool) {
		must(t, h.sql.QueryRow(t.Context(), "SELECT count(*) = 1 FROM holdfast_state").Scan(&one))
		return one
	})
	held, err := h.sql.Begin(t.Context())
	must(t, err)
	_, err = held.Exec(t.Context(), "SELECT FROM holdfast_state FOR UPDATE")
	must(t, err)
	for _, statement := range fail {
		h.e.send(shipOrder{statement}, endpoint.To("sales"))
	}
	h.await("the messages have failed", func() bool { return h.failed() == len(fail) })
	must(t, held.Rollback(t.Context()))
	if reasons := h.e.Health().Reasons; len(reasons) > 0 {
		t.Errorf("the endpoint is not well: %q", reasons)
	}
	h.e.send(shipOrder{"SET LOCAL ROLE " + role}, endpoint.To("sales"))
	h.send(3)
	h.await("the others are handled", func() bool { return h.rows() == 3 })
	if strings.Contains(h.log.String(), "the outbox or the inbox cannot be used") {
		t.Errorf("the log has an outage:\n%s", h.log)
	}
}

// dropsRole removes a role when the test ends.
func (h *troubled) dropsRole(role string) {
	h.t.Cleanup(func() {
		db, err := pgx.Connect(context.Background(), h.url)
		must(h.t, err)
		defer db.Close(context.Background())
		_, err = db.Exec(context.Background(), "DROP ROLE "+role)
		must(h.t, err)
	})
}

// failures returns the texts of the errors in the error queue.
func (h *troubled) failures() string {
	var texts []string
	if h.cfg.Outbox != nil {
		for _, m := range h.broker.Messages("error") {
			texts = append(texts, m.Headers.Get(header.ExceptionMessage))
		}
		return strings.Join(texts, "\n")
	}
	rows, err := h.sql.Query(h.t.Context(), `SELECT coalesce(headers::json ->> 'NServiceBus.ExceptionInfo.Message', '') FROM error`)
	must(h.t, err)
	texts, err = pgx.CollectRows(rows, pgx.RowTo[string])
	must(h.t, err)
	return strings.Join(texts, "\n")
}
