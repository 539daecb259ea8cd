package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"sync"
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
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// The messages of a handler are sent in order, with the headers of the conversation.
func TestSentMessagesKeepOrderAndConversation(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var placed header.Map
		r := harness.Start(t, harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			placed = s.Headers()
			for _, id := range []string{"a", "b", "c"} {
				if err := s.Send(ctx, harness.ShipOrder{ID: m.ID + id}); err != nil {
					return err
				}
			}
			return nil
		})))
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		sent := broker.Messages("shipping")
		var bodies []string
		for _, m := range sent {
			bodies = append(bodies, string(m.Body))
		}
		if diff := cmp.Diff([]string{`{"ID":"7a"}`, `{"ID":"7b"}`, `{"ID":"7c"}`}, bodies); diff != "" {
			t.Fatal(diff)
		}
		h := sent[0].Headers
		for name, want := range map[string]string{
			header.RelatedTo:            placed.Get(header.MessageID),
			header.CorrelationID:        placed.Get(header.MessageID),
			header.ConversationID:       placed.Get(header.ConversationID),
			header.MessageIntent:        "Send",
			header.ReplyToAddress:       "sales",
			header.OriginatingEndpoint:  "sales",
			header.ContentType:          "application/json",
			header.EnclosedMessageTypes: "Shop.ShipOrder",
			header.MessageID:            sent[0].ID,
			header.TimeSent:             header.FormatTime(time.Now()),
		} {
			if got := h.Get(name); got != want || want == "" {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if sent[0].ID == sent[1].ID {
			t.Error("two messages have the same id")
		}
	})
}

// The messages of a handler that fails are not sent, except immediate ones.
func TestAFailingHandlerSendsOnlyImmediateMessages(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			return errors.Join(
				s.Send(ctx, harness.ShipOrder{ID: "kept"}),
				s.Send(ctx, harness.ShipOrder{ID: "immediate"}, endpoint.Immediately()),
				errors.New("no"))
		}))
		cfg.Recoverability = once
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if got := broker.Messages("shipping"); len(got) != 1 || string(got[0].Body) != `{"ID":"immediate"}` {
			t.Errorf("shipping has %d messages", len(got))
		}
		if got := broker.Messages("error"); len(got) != 1 {
			t.Errorf("the error queue has %d messages, want 1", len(got))
		}
	})
}

func TestAReceiptWithinAHandlerGoesWithImmediatelyOnly(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var receipts [2]transport.Receipt
		var errs [2]error
		harness.Start(t, harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			errs[0] = s.Send(ctx, harness.ShipOrder{}, endpoint.After(time.Hour), endpoint.ReceiptIn(&receipts[0]))
			errs[1] = s.Send(ctx, harness.ShipOrder{}, endpoint.After(time.Hour), endpoint.ReceiptIn(&receipts[1]), endpoint.Immediately())
			return nil
		}))).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if errs[0] == nil || !strings.Contains(errs[0].Error(), "use Immediately") {
			t.Errorf("without Immediately: %v", errs[0])
		}
		if errs[1] != nil || receipts[1].Cancel == "" {
			t.Errorf("with Immediately: %v, receipt %q", errs[1], receipts[1])
		}
	})
}

func TestAReplyGoesToWhereTheMessageWantsIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := harness.Start(t, harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			return s.Reply(ctx, harness.OrderAccepted(m))
		})))
		r.MustSend(harness.PlaceOrder{ID: "7"}, endpoint.ReplyTo("other"), endpoint.MessageID("request-1"))
		synctest.Wait()
		got := broker.Messages("other")
		if len(got) != 1 || got[0].Headers.Get(header.CorrelationID) != "request-1" || got[0].Headers.Get(header.MessageIntent) != "Reply" {
			t.Fatalf("replies: %v", got)
		}
	})
}

// A published event reaches each subscriber once, and no other endpoint.
func TestAPublishedEventReachesEachSubscriberOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var heard harness.Tally
		hears := func(name string) endpoint.Handler {
			return endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m *harness.OrderPlaced) error {
				heard.Add(name + m.ID)
				return nil
			})
		}
		billing, shipping := harness.Sales(broker, hears("billing ")), harness.Sales(broker, hears("shipping "))
		billing.Name, shipping.Name = "billing", "shipping"
		harness.Start(t, billing)
		harness.Start(t, shipping)
		r := harness.Start(t, harness.Sales(broker))
		if err := r.Publish(t.Context(), &harness.OrderPlaced{ID: "7"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := strings.Join(heard.List(), ",")
		if got != "billing 7,shipping 7" && got != "shipping 7,billing 7" {
			t.Errorf("heard %q", got)
		}
	})
}

// The handlers of a message run in order, and a retry calls all of them.
func TestHandlersOfAMessageRunInOrderAndRetryTogether(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		first := endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { calls.Add("first"); return nil })
		second := endpoint.Handle(func(context.Context, *endpoint.Session, *harness.PlaceOrder) error {
			if calls.Add("second") < 4 {
				return errors.New("not yet")
			}
			return nil
		})
		harness.Start(t, harness.Sales(broker, first, second)).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if diff := cmp.Diff([]string{"first", "second", "first", "second"}, calls.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// If a behavior repeats handlers, the messages of the failed calls are not sent.
func TestARepeatedHandlerSendsOnlyItsLastMessages(t *testing.T) {
	for _, stage := range []string{"Invoke", "Logical", "Receive"} {
		t.Run(stage, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var tries harness.Tally
				first := endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
					return s.Send(ctx, harness.ShipOrder{ID: "first"})
				})
				second := endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
					err := s.Send(ctx, harness.ShipOrder{ID: "second"})
					if tries.Add(stage) == 1 {
						return errNo
					}
					return err
				})
				cfg := harness.Sales(broker, first, second)
				cfg.Recoverability = once
				switch p := &cfg.Pipeline; stage {
				case "Invoke":
					p.Invoke.Use("again", again)
				case "Logical":
					p.Logical.Use("again", again)
				case "Receive":
					p.Receive.Use("again", again)
				}
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				synctest.Wait()
				var got []string
				for _, m := range broker.Messages("shipping") {
					got = append(got, string(m.Body))
				}
				if diff := cmp.Diff([]string{`{"ID":"first"}`, `{"ID":"second"}`}, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// again is a behavior that tries a second time.
func again[T any](next pipeline.Func[T]) pipeline.Func[T] {
	return func(ctx context.Context, in T) error {
		if next(ctx, in) == nil {
			return nil
		}
		return next(ctx, in)
	}
}

func TestSeveralGoroutinesOfAHandlerShareItsSession(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			var all sync.WaitGroup
			errs := make([]error, 50)
			for i := range errs {
				all.Go(func() {
					_, err := s.Tx(ctx)
					errs[i] = errors.Join(err, s.Send(ctx, harness.ShipOrder{ID: s.Headers().Get(header.MessageID)}))
				})
			}
			all.Wait()
			return errors.Join(errs...)
		}))
		cfg.Transactions = endpoint.SendsAtomicWithReceive
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if got := len(broker.Messages("shipping")); got != 50 {
			t.Errorf("%d messages left, want 50", got)
		}
	})
}

func TestASessionIsOverWhenItsHandlersHaveReturned(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var kept *endpoint.Session
		r := harness.Start(t, harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			kept = s
			return nil
		})))
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if err := kept.Send(t.Context(), harness.ShipOrder{}); !errors.Is(err, endpoint.ErrSessionOver) {
			t.Errorf("got %v, want ErrSessionOver", err)
		}
	})
}

func TestConcurrencyIsReachedAndOneIsStrictlyInOrder(t *testing.T) {
	for _, n := range []int{1, 5} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var mu sync.Mutex
			now, most := 0, 0
			cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				now--
				mu.Unlock()
				return s.Send(ctx, harness.ShipOrder(m))
			}))
			cfg.Concurrency = n
			r := harness.Start(t, cfg)
			for _, id := range strings.Split("abcdefghij", "") {
				r.MustSend(harness.PlaceOrder{ID: id})
			}
			time.Sleep(time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if most != n {
				t.Errorf("concurrency %d: at most %d ran at once", n, most)
			}
			var order strings.Builder
			for _, m := range broker.Messages("shipping") {
				order.WriteString(string(m.Body[7]))
			}
			if n == 1 && order.String() != "abcdefghij" {
				t.Errorf("order %s", order.String())
			}
		})
	}
}

// A stop waits for running handlers, and leaves the other messages in the queue.
func TestStopWaitsForHandlersAndLeavesTheRest(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var done harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
			time.Sleep(10 * time.Second)
			done.Add(m.ID)
			return ctx.Err()
		}))
		cfg.Concurrency = 2
		r := harness.Start(t, cfg)
		for _, id := range strings.Split("abcde", "") {
			r.MustSend(harness.PlaceOrder{ID: id})
		}
		time.Sleep(time.Second)
		r.End()
		if got := len(done.List()); got != 2 {
			t.Errorf("%d messages were handled, want the 2 that had begun", got)
		}
		if got := len(broker.Messages("sales")); got != 3 {
			t.Errorf("%d messages are left, want 3", got)
		}
		if err := r.Send(context.Background(), harness.PlaceOrder{}); !errors.Is(err, endpoint.ErrNotRunning) {
			t.Errorf("Send after the end: %v", err)
		}
	})
}

func TestAHandlerCutByTheStopTimeoutGivesItsMessageBack(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		cfg.StopTimeout = 5 * time.Second
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		begin := time.Now()
		r.End()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("the stop took %v, want 5s", took)
		}
		if len(broker.Messages("sales")) != 1 || len(broker.Messages("error")) != 0 {
			t.Error("the message is not back in its queue")
		}
	})
}

func TestALostLeaseCancelsTheHandlerAndIsNoFailure(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 10 * time.Second
		var broken atomic.Bool
		var givenUp harness.Tally
		broker.Fail = func(verb, _ string) error {
			switch {
			case broken.Load() && verb == "Renew":
				return errors.New("away")
			case verb == "Retry":
				givenUp.Add(verb)
			}
			return nil
		}
		var causes harness.Tally
		r := harness.Start(t, harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			if s.Attempt().N > 1 {
				return nil
			}
			broken.Store(true)
			<-ctx.Done()
			broken.Store(false)
			causes.Add(context.Cause(ctx).Error())
			return ctx.Err()
		})))
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		if got := causes.List(); len(got) != 1 || got[0] != transport.ErrLeaseLost.Error() {
			t.Errorf("causes %q, want one lost lease", got)
		}
		if got := givenUp.List(); len(got) != 1 {
			t.Errorf("the driver was told %d times that the message is given up, want once", len(got))
		}
		if len(broker.Messages("error")) != 0 || len(broker.Messages("sales")) != 0 {
			t.Error("the message was not handled the second time")
		}
	})
}

func TestBehaviorsOfEveryStageSeeTheirValue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var trace harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			trace.Add("handler " + m.ID + " " + s.Header("stamped"))
			return s.Send(ctx, harness.ShipOrder(m))
		}))
		p := &cfg.Pipeline
		p.Receive.Use("trace", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, in *pipeline.Receive) error {
				in.Headers.Set("stamped", "yes")
				trace.Add("receive " + in.Queue)
				return next(ctx, in)
			}
		})
		p.Logical.Use("trace", func(next pipeline.Func[*pipeline.Logical]) pipeline.Func[*pipeline.Logical] {
			return func(ctx context.Context, in *pipeline.Logical) error {
				trace.Add("logical " + in.Type)
				in.Value.(*harness.PlaceOrder).ID += "!"
				return next(ctx, in)
			}
		})
		p.Invoke.Use("trace", func(next pipeline.Func[*pipeline.Invoke]) pipeline.Func[*pipeline.Invoke] {
			return func(ctx context.Context, in *pipeline.Invoke) error {
				trace.Add("invoke " + in.Type)
				return next(ctx, in)
			}
		})
		p.Outgoing.Use("trace", func(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
			return func(ctx context.Context, out *pipeline.Outgoing) error {
				out.Headers.Set("tenant", "42")
				trace.Add("outgoing " + out.Types[0])
				return next(ctx, out)
			}
		})
		p.Dispatch.Use("trace", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
			return func(ctx context.Context, d *pipeline.Dispatch) error {
				trace.Add("dispatch " + d.Operations[0].Queue)
				return next(ctx, d)
			}
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		want := []string{
			"outgoing Shop.PlaceOrder", "dispatch sales",
			"receive sales", "logical Shop.PlaceOrder", "invoke Shop.PlaceOrder", "handler 7! yes",
			"outgoing Shop.ShipOrder", "dispatch shipping",
		}
		if diff := cmp.Diff(want, trace.List()); diff != "" {
			t.Error(diff)
		}
		if got := broker.Messages("shipping"); len(got) != 1 || got[0].Headers.Get("tenant") != "42" {
			t.Errorf("sent %v", got)
		}
	})
}

// If a behavior does not call next, the rest of its stage does not happen.
func TestABehaviorWithoutNextEndsItsStage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			calls.Add(m.ID)
			return s.Send(ctx, harness.ShipOrder(m))
		}))
		cfg.Pipeline.Receive.Use("drop", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, in *pipeline.Receive) error {
				if in.Headers.Get("drop") != "" {
					return nil
				}
				return next(ctx, in)
			}
		})
		cfg.Pipeline.Dispatch.Use("mute", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
			return func(ctx context.Context, d *pipeline.Dispatch) error {
				if d.Incoming != nil {
					return nil
				}
				return next(ctx, d)
			}
		})
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "dropped"}, endpoint.Header("drop", "1"))
		r.MustSend(harness.PlaceOrder{ID: "muted"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"muted"}, calls.List()); diff != "" {
			t.Error(diff)
		}
		stats := len(broker.Messages("shipping")) + len(broker.Messages("sales")) + len(broker.Messages("error"))
		if stats != 0 {
			t.Errorf("%d messages are somewhere, want both completed and nothing sent", stats)
		}
	})
}

// The next attempt sees none of the headers that a behavior changed.
func TestChangedHeadersAreGoneAtTheNextAttempt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var seen harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			seen.Add(s.Header("stamp"))
			return errors.New("again")
		}))
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: 1}
		cfg.Pipeline.Receive.Use("stamp", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, in *pipeline.Receive) error {
				in.Headers.Set("stamp", in.Headers.Get("stamp")+"x")
				in.Body = append([]byte(" "), in.Body...)
				return next(ctx, in)
			}
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "7"})
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{"x", "x", "x", "x"}, seen.List()); diff != "" {
			t.Error(diff)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get("stamp") != "" || string(failed[0].Body) != `{"ID":"7"}` {
			t.Errorf("error queue: %v", failed)
		}
	})
}
