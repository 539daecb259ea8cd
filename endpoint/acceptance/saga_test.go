package acceptance_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

type counted struct{ N int }

// Two endpoints share a file, which takes no lock for a record: what one of them has changed
// meanwhile is a conflict, and is repeated.
func TestASagaOnSQLiteCountsEachMessageOnce(t *testing.T) {
	for name, broker := range map[string]*inmemory.Transport{"atomic": nil, "outbox": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const messages = 200
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			path := filepath.Join(t.TempDir(), "shop.db")
			count := func(_ context.Context, c *saga.Context[counted], _ work) error {
				c.State.N++
				return nil
			}
			config := func() endpoint.Config {
				db := &sqlite.Transport{Path: path, Relaxed: true}
				cfg := endpoint.Config{
					Name: "sales", Install: true, Transport: db, Transactions: endpoint.SendsAtomicWithReceive, Concurrency: 4,
					Messages: []endpoint.Message{endpoint.Command[work]("Shop.Work")},
					Handlers: saga.New("works", saga.Start(func(work) string { return "one" }, count)).Handlers(),
				}
				if broker != nil {
					cfg.Transport, cfg.Outbox, cfg.Transactions = broker, db, endpoint.ReceiveOnly
				}
				return cfg
			}
			var ended []chan error
			var first *endpoint.Endpoint
			for i := range 2 {
				cfg := config()
				cfg.Instance = "instance-" + string(rune('a'+i))
				e, err := endpoint.New(cfg)
				must(t, err)
				done := make(chan error, 1)
				go func() { done <- e.Run(ctx) }()
				must(t, e.WaitReady(ctx))
				ended = append(ended, done)
				if first == nil {
					first = e
				}
			}
			for n := range messages {
				must(t, first.SendLocal(ctx, work{n}))
			}
			conn, err := (&sqlite.Transport{Path: path}).Open(ctx, transport.Env{Endpoint: "test"})
			must(t, err)
			defer conn.Close()
			for at := (counted{}); at.N < messages; {
				if backoff.Sleep(ctx, 20*time.Millisecond) != nil {
					t.Fatal(context.Cause(ctx))
				}
				r, err := conn.(transport.StateInspector).Record(ctx, saga.ID("sales", "works", "one"))
				if err == nil {
					must(t, json.Unmarshal(r.State, &at))
				}
				if at.N > messages {
					t.Fatalf("%d messages are counted, and %d were sent", at.N, messages)
				}
			}
			cancel()
			for _, done := range ended {
				must(t, <-done)
			}
		})
	}
}
