package acceptance_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// asked has what a pool has asked its server.
type asked struct {
	mu  sync.Mutex
	all []string
}

func (a *asked) add(sql string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, sql)
}

// take returns what was asked since the last call.
func (a *asked) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}

func (a *asked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	a.add(data.SQL)
	return ctx
}

func (*asked) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (a *asked) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	a.add("a batch")
	return ctx
}

func (*asked) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (*asked) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// It waits in real time, for the server is real. The start of the endpoint may take several periods on a busy machine.
func TestIdleEndpointAsksAtMostTwiceASecond(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(brokertest.Postgres(t))
	must(t, err)
	var requests asked
	cfg.ConnConfig.Tracer = &requests
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	start(t, endpoint.Config{
		Name: "idle", Transport: &postgres.Transport{Pool: pool}, Install: true,
		Messages: []endpoint.Message{endpoint.Command[work]("Idle.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, work) error { return nil })},
	})
	const period = 10 * time.Second
	tick := time.NewTicker(period)
	defer tick.Stop()
	for try := 1; ; try++ {
		<-tick.C
		all := requests.take()
		switch {
		case try > 1 && len(all) < 5:
			t.Fatalf("%d requests in %s: those are not all: %q", len(all), period, all)
		case try > 1 && len(all) <= 20:
			t.Logf("%d requests in %s", len(all), period)
			return
		case try == 6:
			t.Fatalf("%d requests in %s, want at most 20: %q", len(all), period, all)
		}
	}
}
