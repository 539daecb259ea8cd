package servicecontrol

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/safelog"
	"github.com/holdfast-go/holdfast/transport"
)

// Attach adds the reports that sc selects to the endpoint of cfg: a function to Config.Background,
// and for metrics behaviors and a function to Config.Notify. The error lists all mistakes in sc,
// and cfg is unchanged then. Attach is called for each endpoint when the rest of its cfg is
// complete, before endpoint.New. The reports begin when the endpoint is ready and end after its
// last handler has returned; then they need at most 5 s to send the last metrics.
//
// Attach may be called again with another Config to report to another ServiceControl, also its
// metrics. The sagas have one queue.
func Attach(cfg *endpoint.Config, sc Config) error {
	sc = sc.withDefaults()
	if err := sc.validate(cfg); err != nil {
		return fmt.Errorf("servicecontrol: endpoint %q: invalid configuration: %w", cfg.Name, err)
	}
	r := &reporter{
		Config: sc, endpoint: cfg.Name, sendOnly: cfg.SendOnly, transport: cfg.Transport,
		env: transport.Env{Logger: cfg.Logger, Endpoint: cfg.Name, Instance: cfg.Instance, Shared: &shared},
	}
	if r.env.Logger == nil {
		r.env.Logger = slog.Default()
	}
	r.env.Logger = safelog.New(r.env.Logger)
	if sc.MetricsQueue != "" {
		r.metrics = newMetrics()
		r.metrics.observe(cfg, sc.MetricsQueue)
	}
	if sc.SagaAuditQueue != "" {
		cfg.Pipeline.Dispatch.Use(sagaAudit, r.auditSagas)
	}
	if sc.HeartbeatQueue != "" || sc.checks() || sc.MetricsQueue != "" {
		cfg.Background = append(slices.Clip(cfg.Background), r.run)
	}
	return nil
}

// shared has the connections for the reports of all endpoints of the process, which few suffice
// for. Those of the endpoints themselves are not among them: neither delays the other.
var shared transport.Shared

// reporter sends the reports of one endpoint.
type reporter struct {
	Config
	endpoint  string
	sendOnly  bool
	transport transport.Transport
	env       transport.Env
	metrics   *metrics // nil without MetricsQueue
}

// reopen is the pause after an attempt to connect that failed. Later losses are the driver's part.
const (
	reopen      = 10 * time.Second
	openTimeout = 30 * time.Second
)

// run sends reports until ctx ends.
func (r *reporter) run(ctx context.Context, e *endpoint.Endpoint) {
	startedAt := time.Now()
	conn, err := r.open(ctx)
	if err != nil {
		return // ctx has ended
	}
	defer func() {
		if err := conn.Close(); err != nil {
			r.env.Logger.WarnContext(ctx, "the connection for reports to ServiceControl was not closed in order",
				slog.String("endpoint", r.endpoint), slog.Any("error", err))
		}
	}()
	s := &sender{reporter: r, conn: conn, host: newHost(e.Host()), address: addressOf(conn, r.endpoint)}
	if queue, ok := s.ownQueue(); ok {
		r.env.Logger.ErrorContext(ctx, "there are no reports to ServiceControl, because their queue is the endpoint's own: "+
			"name the queue of ServiceControl", slog.String("endpoint", r.endpoint), slog.String("queue", queue))
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if r.HeartbeatQueue != "" {
		wg.Go(func() { s.register(ctx, startedAt) })
		wg.Go(func() { s.heartbeats(ctx) })
	}
	if r.checks() {
		for _, c := range r.Checks {
			wg.Go(func() { s.check(ctx, c) })
		}
	}
	if r.MetricsQueue != "" {
		s.reportMetrics(ctx)
	}
}

// open connects, until that succeeds or ctx ends.
func (r *reporter) open(ctx context.Context) (transport.Conn, error) {
	failures := r.failures("connection")
	for {
		conn, err := r.openOnce(ctx)
		if err == nil {
			failures.ended(ctx)
			return conn, nil
		}
		failures.add(ctx, err)
		if err := sleep(ctx, reopen); err != nil {
			return nil, err
		}
	}
}

func (r *reporter) openOnce(ctx context.Context) (transport.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return r.transport.Open(ctx, r.env)
}

// sleep waits for d, or returns the error of ctx when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
