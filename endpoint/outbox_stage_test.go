package endpoint_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// What the outbox sends runs through the Relay stage, also a refused message on its way to the error queue.
func TestTheOutboxSendsThroughTheRelayStage(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "other" {
				return transport.ErrTooLarge
			}
			return nil
		}
		cfg := storing(broker, db, new(tally))
		var seen tally
		cfg.Pipeline.Relay.Use("look", func(next pipeline.Func[*pipeline.Relay]) pipeline.Func[*pipeline.Relay] {
			return func(ctx context.Context, r *pipeline.Relay) error {
				err := next(ctx, r)
				for i, op := range r.Operations {
					outcome := "sent"
					if failed, ok := errors.AsType[*transport.DispatchError](err); ok && failed.Ops[0].Index == i {
						outcome = "refused"
					}
					seen.add(op.Queue + " " + outcome)
				}
				return err
			}
		})
		r := start(t, cfg)
		r.send(placeOrder{ID: "1"})
		pass(time.Second)
		if err := r.Send(t.Context(), shipOrder{ID: "2"}, endpoint.To("other"), endpoint.ViaOutbox()); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if diff := cmp.Diff([]string{"shipping sent", "other refused", "error sent"}, seen.list()); diff != "" {
			t.Error(diff)
		}
	})
}

// While a behavior of the Relay stage fails, the messages stay in the outbox.
func TestAFailureOfTheRelayStageLosesNothing(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("no key to sign with") },
		"panic": func() error { panic("no key to sign with") },
	} {
		t.Run(name, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				cfg := storing(broker, db, new(tally))
				var failing atomic.Bool
				cfg.Pipeline.Relay.Use("sign", func(next pipeline.Func[*pipeline.Relay]) pipeline.Func[*pipeline.Relay] {
					return func(ctx context.Context, r *pipeline.Relay) error {
						if failing.Load() {
							return fail()
						}
						return next(ctx, r)
					}
				})
				failing.Store(true)
				r := start(t, cfg)
				for _, id := range []string{"1", "2"} {
					r.send(placeOrder{ID: id})
				}
				pass(10 * time.Minute)
				if n := len(broker.Messages("shipping")) + len(broker.Messages("error")); n != 0 {
					t.Fatalf("%d messages were sent", n)
				}
				failing.Store(false)
				pass(2 * time.Minute)
				if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 2 || failed != 0 {
					t.Errorf("%d sent, %d in the error queue; want 2, 0", sent, failed)
				}
			})
		})
	}
}

func TestAMistakeInTheRelayStageIsOneOfTheConfiguration(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := storing(broker, db, new(tally))
		cfg.Pipeline.Relay.Remove("unknown")
		if _, err := endpoint.New(cfg); err == nil {
			t.Error("a stage that removes an unknown behavior is accepted")
		}
	})
}
