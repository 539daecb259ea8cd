package endpointtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
)

// recorder records an attempt by the outermost behaviors of the pipeline.
type recorder struct {
	stop       context.CancelFunc
	serializer serialization.Serializer

	mu         sync.Mutex // guards the rest: handlers may send from several goroutines
	made       map[*transport.Message]Sent
	recovering bool
	over       bool
	seen       Result
}

const behavior = "endpointtest"

// record adds the recorder's behaviors to cfg.
func (r *recorder) record(cfg *endpoint.Config) {
	r.serializer = serialization.JSON
	if len(cfg.Serializers) > 0 {
		r.serializer = cfg.Serializers[0]
	}
	outermost(&cfg.Pipeline.Outgoing, r.outgoing)
	outermost(&cfg.Pipeline.Dispatch, r.dispatch)
	outermost(&cfg.Pipeline.Recover, r.recover)
}

func outermost[T any](s *pipeline.Stage[T], b pipeline.Behavior[T]) {
	if names := s.Names(); len(names) > 0 {
		s.Before(names[0], behavior, b)
		return
	}
	s.Use(behavior, b)
}

// outgoing records a message, which may be sent later.
func (r *recorder) outgoing(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
	return func(ctx context.Context, out *pipeline.Outgoing) error {
		if err := next(ctx, out); err != nil || out.Operation.Message == nil {
			return err
		}
		sent := describe(&out.Operation)
		sent.Intent, sent.Types, sent.Value = out.Intent, slices.Clone(out.Types), r.read(out)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.made[out.Operation.Message] = sent
		if r.recovering && !out.Immediately { // it is sent with the action, without a stage
			r.seen.Sent = append(r.seen.Sent, sent)
		}
		return nil
	}
}

// read returns the message as its receiver decodes it.
func (r *recorder) read(out *pipeline.Outgoing) any {
	given := reflect.Indirect(reflect.ValueOf(out.Value))
	read := reflect.New(given.Type())
	if err := r.serializer.Unmarshal(out.Operation.Message.Body, read.Interface()); err != nil {
		return given.Interface()
	}
	return read.Elem().Interface()
}

// describe returns an operation as a Sent.
func describe(op *transport.Operation) Sent {
	h := op.Message.Headers.Clone()
	return Sent{
		Intent: h.Get(header.MessageIntent), Queue: op.Queue, Types: slices.Clone(op.Types), Headers: h,
		Delay: op.Delay(time.Now()), TTL: op.TTL,
	}
}

// dispatch records the sent messages, and that the message is completed.
func (r *recorder) dispatch(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		if err := next(ctx, d); err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for i := range d.Operations {
			op := &d.Operations[i]
			sent, ok := r.made[op.Message]
			if !ok {
				sent = describe(op)
			}
			r.seen.Sent = append(r.seen.Sent, sent)
		}
		if d.Incoming != nil {
			r.end()
		}
		return nil
	}
}

// recover records the error and the action.
func (r *recorder) recover(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
	return func(ctx context.Context, rec *pipeline.Recover) error {
		r.mu.Lock()
		r.seen.Err, r.recovering = rec.Failure.Err, true
		left, failed := len(r.seen.Sent), true // also when next panics
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if failed { // messages of the stage are not sent
				r.seen.Sent = r.seen.Sent[:left]
			}
			r.seen.Action = rec.Action
			switch rec.Action.(type) {
			case recoverability.Retry, recoverability.RetryInline:
				r.seen.Outcome = Retried
			case recoverability.Delay:
				r.seen.Outcome = Delayed
			case recoverability.DeadLetter:
				r.seen.Outcome = DeadLettered
			case recoverability.Discard:
				r.seen.Outcome = Discarded
			default:
				r.seen.Outcome = MovedToError
			}
			r.end()
		}()
		err := next(ctx, rec)
		failed = err != nil
		return err
	}
}

// end stops the endpoint before a second attempt. Called with mu held.
func (r *recorder) end() {
	r.over = true
	r.stop()
}

// result returns the outcome.
func (r *recorder) result(ctx context.Context) (Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		return Result{}, fmt.Errorf("%w: %w", errUnsettled, context.Cause(ctx))
	}
	return r.seen, nil
}

var errUnsettled = errors.New("endpointtest: the message was not settled")
