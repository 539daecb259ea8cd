package otel

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/holdfast-go/holdfast/transport"
)

// observed is a transport that records its connections, which report the depth of queues.
type observed struct {
	transport.Transport
	gauges *queueGauges
}

// System returns the name of the broker.
func (o observed) System() string { return systemOf(o.Transport) }

// Open opens a connection and records it.
func (o observed) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := o.Transport.Open(ctx, env)
	if i, ok := conn.(transport.Inspector); ok && err == nil {
		o.gauges.add(i)
	}
	return conn, err
}

// queueGauges observes queues when metrics are collected.
type queueGauges struct {
	queues   []string
	labels   *labels
	messages metric.Int64ObservableGauge
	oldest   metric.Float64ObservableGauge

	mu    sync.Mutex // guards conns
	conns []*opened
}

// opened is a connection, identified by its address.
type opened struct{ transport.Inspector }

func (g *queueGauges) add(i transport.Inspector) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns = append(g.conns, &opened{i})
}

// inspectTimeout bounds an inspection of all queues: other metrics wait for it.
const inspectTimeout = 5 * time.Second

// collect returns no error: otherwise no metric at all would be exported.
func (g *queueGauges) collect(ctx context.Context, o metric.Observer) error {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	for _, queue := range g.queues {
		stats, err := g.inspect(ctx, queue)
		if err != nil {
			api.Handle(err)
		}
		for _, s := range stats {
			g.report(o, s)
		}
	}
	return nil
}

// inspect uses the connection that was opened last, and removes closed ones.
func (g *queueGauges) inspect(ctx context.Context, queue string) ([]transport.QueueStats, error) {
	g.mu.Lock()
	conns := slices.Clone(g.conns)
	g.mu.Unlock()
	for _, c := range slices.Backward(conns) {
		stats, err := c.Inspect(ctx, queue)
		switch {
		case errors.Is(err, transport.ErrClosed):
			g.remove(c)
		case errors.Is(err, transport.ErrNoQueue):
			return nil, nil
		default:
			return stats, err
		}
	}
	return nil, nil
}

func (g *queueGauges) remove(i *opened) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns = slices.DeleteFunc(g.conns, func(c *opened) bool { return c == i })
}

func (g *queueGauges) report(o metric.Observer, s transport.QueueStats) {
	name := semconv.MessagingDestinationName(s.Name)
	for _, c := range []struct {
		state string
		n     int64
	}{{"ready", s.Ready}, {"unsettled", s.Unsettled}, {"delayed", s.Delayed}} {
		if c.n >= 0 { // otherwise the broker does not count them
			o.ObserveInt64(g.messages, c.n, g.with(name, keyQueueState.String(c.state)))
		}
	}
	o.ObserveFloat64(g.oldest, s.Oldest.Seconds(), g.with(name))
}

func (g *queueGauges) with(attrs ...attribute.KeyValue) metric.ObserveOption {
	return metric.WithAttributeSet(g.labels.set(attrs...))
}
