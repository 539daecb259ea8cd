package servicecontrol

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// metrics are the values of one endpoint that wait to be sent.
type metrics struct {
	processing, critical, retries, length *series

	full chan struct{} // receives when a series has values for a whole message
}

func newMetrics() *metrics {
	m := &metrics{full: make(chan struct{}, 1)}
	m.processing, m.critical = newSeries("ProcessingTime", m.full), newSeries("CriticalTime", m.full)
	m.retries, m.length = newSeries("Retries", m.full), newSeries("QueueLength", m.full)
	return m
}

func (m *metrics) all() []*series { return []*series{m.processing, m.critical, m.retries, m.length} }

// waiting returns the number of values that were not sent.
func (m *metrics) waiting() (n int) {
	for _, s := range m.all() {
		n += s.waiting()
	}
	return n
}

// behavior begins the names of this package's behaviors, which end with the queue of the metrics.
const behavior = "servicecontrol to "

// observe adds the behaviors that measure for a queue to the endpoint of cfg, outside of all
// others. An endpoint with two behaviors of one queue is refused.
func (m *metrics) observe(cfg *endpoint.Config, queue string) {
	outermost(&cfg.Pipeline.Receive, behavior+queue, m.received)
	outermost(&cfg.Pipeline.Dispatch, behavior+queue, m.dispatched)
	cfg.Notify = append([]func(context.Context, recoverability.Notification){m.notified}, cfg.Notify...)
}

func outermost[T any](s *pipeline.Stage[T], name string, b pipeline.Behavior[T]) {
	if names := s.Names(); len(names) > 0 {
		s.Before(names[0], name, b)
		return
	}
	s.Use(name, b)
}

// startKey is the key of the start of an attempt in the state of a stage value.
type startKey struct{}

func (m *metrics) received(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
	return func(ctx context.Context, r *pipeline.Receive) error {
		start := time.Now()
		r.SetState(startKey{}, &start)
		return next(ctx, r)
	}
}

// dispatched measures a message that was processed: its own messages are sent, and it is removed
// from its queue.
func (m *metrics) dispatched(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		err := next(ctx, d)
		if err == nil && d.Incoming != nil {
			m.processed(d.Incoming)
		}
		return err
	}
}

func (m *metrics) processed(r *pipeline.Receive) {
	h := r.Message.Headers
	now, tag := time.Now(), typeOf(h.Get(header.EnclosedMessageTypes))
	if start, ok := r.State(startKey{}).(*time.Time); ok {
		m.processing.add(now, milliseconds(now.Sub(*start)), tag)
	}
	if due, ok := dueTime(&h); ok {
		m.critical.add(now, milliseconds(now.Sub(due)), tag)
	}
}

func (m *metrics) notified(_ context.Context, n recoverability.Notification) {
	switch n.Kind {
	case recoverability.ImmediateRetry, recoverability.InlineRetry, recoverability.DelayedRetry:
		m.retries.add(time.Now(), 1, typeOf(n.Failure.Headers.Get(header.EnclosedMessageTypes)))
	default: // no retry
	}
}

// typeOf returns the most concrete name of a types header without its assembly; "" for none.
func typeOf(enclosed string) string {
	for name := range header.TypeNames(enclosed) {
		return name
	}
	return ""
}

// dueTime returns the earliest time at which a message could be processed, by its sender's clock.
func dueTime(h *header.Map) (time.Time, bool) {
	if t, err := header.ParseTime(h.Get(header.DeliverAt)); err == nil {
		return t, true
	}
	t, err := header.ParseTime(h.Get(header.TimeSent))
	return t, err == nil
}

// milliseconds returns d in whole milliseconds. Clocks that differ make d negative: then it is 0.
func milliseconds(d time.Duration) int64 { return max(0, d).Milliseconds() }
