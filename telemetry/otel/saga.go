package otel

import (
	"context"
	"errors"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// sagas are the instruments of the sagas of an endpoint.
type sagas struct {
	labels                           *labels
	begun, ended, ignored, conflicts metric.Int64Counter
	wait                             metric.Float64Histogram
}

func newSagas(meter metric.Meter, ls *labels) *sagas {
	var errs [5]error
	counter := func(i int, name, unit, text string) (c metric.Int64Counter) {
		c, errs[i] = meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		return c
	}
	s := &sagas{
		labels:    ls,
		begun:     counter(0, "holdfast.saga.begun", "{instance}", "Instances of sagas that have begun."),
		ended:     counter(1, "holdfast.saga.ended", "{instance}", "Instances of sagas that have ended."),
		ignored:   counter(2, "holdfast.saga.ignored", "{message}", "Messages that changed no instance of a saga."),
		conflicts: counter(3, "holdfast.saga.conflicts", "{attempt}", "Attempts that gave way to another one at the same instance, and are repeated."),
	}
	s.wait, errs[4] = meter.Float64Histogram("holdfast.saga.wait", metric.WithUnit("s"),
		metric.WithDescription("Time that a message waited for others of its instance."), metric.WithExplicitBucketBoundaries(waitTimes...))
	if err := errors.Join(errs[:]...); err != nil {
		api.Handle(err)
	}
	return s
}

// handled counts the calls of sagas in an attempt whose commit returned err.
func (s *sagas) handled(ctx context.Context, r *pipeline.Receive, err error) {
	for _, i := range saga.Invocations(r) {
		if i.Err != nil {
			continue // invoked has counted it
		}
		of := s.labels.of(label{saga: i.Saga})
		if err != nil {
			s.conflict(ctx, i.Saga, err)
			continue
		}
		if i.New {
			s.begun.Add(ctx, 1, of.add...)
		}
		if i.Completed {
			s.ended.Add(ctx, 1, of.add...)
		}
		if i.Ignored != "" {
			s.ignored.Add(ctx, 1, s.labels.of(label{saga: i.Saga, ignored: string(i.Ignored)}).add...)
		}
		s.wait.Record(ctx, i.Waited.Seconds(), of.record...)
	}
}

// failed counts the last call of a saga, which has failed.
func (s *sagas) failed(ctx context.Context, r *pipeline.Receive) {
	if all := saga.Invocations(r); len(all) > 0 {
		last := &all[len(all)-1]
		s.conflict(ctx, last.Saga, last.Err)
	}
}

func (s *sagas) conflict(ctx context.Context, name string, err error) {
	if errors.Is(err, transport.ErrConflict) {
		s.conflicts.Add(ctx, 1, s.labels.of(label{saga: name}).add...)
	}
}
