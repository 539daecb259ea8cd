package endpoint_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// scribble changes all that it can reach of a message, in place.
func scribble(m *transport.Message, headers *header.Map, bodies ...[]byte) {
	for _, body := range append(bodies, m.Body) {
		for i := range body {
			body[i] = '!'
		}
	}
	for _, h := range []*header.Map{&m.Headers, headers} {
		h.Set("Colour", "scribbled")
		h.Set("Scribbled", "yes")
		h.Del("Taste")
	}
}

// keeping is a serializer whose values share the body's bytes.
type keeping struct{ serialization.Serializer }

func (keeping) ContentType() string { return "text/kept" }
func (keeping) Unmarshal(body []byte, v any) error {
	*v.(*kept) = kept{body}
	return nil
}

type kept struct{ Body []byte }

// The copies in the error queue, those to be tried later, for the audit and forwarded are what was
// received, whatever behaviors, handlers and policies did to what they saw.
func TestCopiesAreOfTheMessageAsItCame(t *testing.T) {
	var fails atomic.Bool
	handle := func(ctx context.Context, s *endpoint.Session) error {
		h := s.Headers()
		h.Set("Colour", "scribbled")
		if err := s.Forward(ctx, "other"); err != nil {
			return err
		}
		if fails.Load() {
			return errNo
		}
		return nil
	}
	receive := func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
		return func(ctx context.Context, r *pipeline.Receive) error {
			err := next(ctx, r)
			scribble(r.Message, &r.Headers, r.Body)
			return err
		}
	}
	for name, change := range map[string]func(*endpoint.Config){
		"Receive": func(c *endpoint.Config) { c.Pipeline.Receive.Use("scribble", receive) },
		"Dispatch": func(c *endpoint.Config) {
			c.Pipeline.Dispatch.Use("scribble", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
				return func(ctx context.Context, d *pipeline.Dispatch) error {
					if d.Incoming != nil {
						scribble(d.Incoming.Message, &d.Incoming.Headers, d.Incoming.Body)
					}
					return next(ctx, d)
				}
			})
		},
		"Recover": func(c *endpoint.Config) {
			c.Pipeline.Recover.Use("scribble", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
				return func(ctx context.Context, rec *pipeline.Recover) error {
					scribble(rec.Message, &rec.Failure.Headers, rec.Body, rec.Failure.Body)
					return next(ctx, rec)
				}
			})
		},
		"the policy": func(c *endpoint.Config) {
			c.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
				a := f.Decide()
				scribble(&transport.Message{Body: f.Body}, &f.Headers)
				return a
			}
		},
		"the final failure": func(c *endpoint.Config) {
			c.OnFinalFailure = func(_ context.Context, _ *endpoint.Session, f recoverability.Failure) error {
				scribble(&transport.Message{Body: f.Body}, &f.Headers)
				return nil
			}
		},
		"a handler of shared bytes": func(c *endpoint.Config) {
			c.Messages = append(c.Messages, endpoint.Command[kept]("Shop.Kept"))
			c.Serializers = []serialization.Serializer{serialization.JSON, keeping{serialization.JSON}}
			c.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m kept) error {
				scribble(&transport.Message{}, &header.Map{}, m.Body)
				return handle(ctx, s)
			})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error { return handle(ctx, s) }))
				cfg.AuditQueue = "audit"
				cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: 1}
				change(&cfg)
				r := harness.Start(t, cfg)
				h := header.New(
					header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"}, header.Field{Name: "Colour", Value: "red"},
					header.Field{Name: "Taste", Value: "sweet"}, header.Field{Name: header.MessageID, Value: "m-1"},
				)
				if name == "a handler of shared bytes" {
					h.Set(header.EnclosedMessageTypes, "Shop.Kept")
					h.Set(header.ContentType, "text/kept")
				}
				for _, f := range []bool{true, false} {
					fails.Store(f)
					if err := broker.Put("sales", &transport.Message{ID: "m-1", Headers: h.Clone(), Body: []byte(`{"ID":"7"}`)}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute)
					synctest.Wait()
				}
				r.End()
				for _, queue := range []string{"error", "audit", "other"} {
					got := broker.Messages(queue)
					if len(got) != 1 {
						t.Fatalf("%d messages in %s", len(got), queue)
					}
					seen := []string{got[0].Headers.Get("Colour"), got[0].Headers.Get("Taste"), got[0].Headers.Get("Scribbled"), string(got[0].Body)}
					if diff := cmp.Diff([]string{"red", "sweet", "", `{"ID":"7"}`}, seen); diff != "" {
						t.Errorf("%s: %s", queue, diff)
					}
				}
			})
		})
	}
}

// Each attempt sees the message as it came, too.
func TestAttemptsShareNoChangesOfTheMessage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var seen harness.Tally
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: 1}
		cfg.Pipeline.Receive.Use("scribble", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, r *pipeline.Receive) error {
				seen.Add(string(r.Body) + r.Message.Headers.Get("Scribbled"))
				err := next(ctx, r)
				scribble(r.Message, &r.Headers, r.Body)
				return err
			}
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "7"})
		time.Sleep(time.Minute)
		synctest.Wait()
		got := seen.List()
		if len(got) != 6 {
			t.Errorf("%d attempts, want 6", len(got))
		}
		for _, s := range got {
			if s != `{"ID":"7"}` {
				t.Errorf("an attempt saw %s", s)
			}
		}
	})
}
