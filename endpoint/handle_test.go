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
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestWhatAHandlerSendsLeavesInOrderWithTheHeadersOfAConversation(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var placed header.Map
		r := start(t, sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			placed = s.Headers()
			for _, id := range []string{"a", "b", "c"} {
				if err := s.Send(ctx, shipOrder{ID: m.ID + id}); err != nil {
					return err
				}
			}
			return nil
		})))
		r.send(placeOrder{ID: "7"})
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

func TestWhatAFailingHandlerSentDoesNotLeaveUnlessImmediately(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			return errors.Join(
				s.Send(ctx, shipOrder{ID: "kept"}),
				s.Send(ctx, shipOrder{ID: "immediate"}, endpoint.Immediately()),
				errors.New("no"))
		}))
		cfg.Recoverability = once
		start(t, cfg).send(placeOrder{})
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var receipts [2]transport.Receipt
		var errs [2]error
		start(t, sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
			errs[0] = s.Send(ctx, shipOrder{}, endpoint.After(time.Hour), endpoint.ReceiptIn(&receipts[0]))
			errs[1] = s.Send(ctx, shipOrder{}, endpoint.After(time.Hour), endpoint.ReceiptIn(&receipts[1]), endpoint.Immediately())
			return nil
		}))).send(placeOrder{})
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := start(t, sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			return s.Reply(ctx, orderAccepted(m))
		})))
		r.send(placeOrder{ID: "7"}, endpoint.ReplyTo("other"), endpoint.MessageID("request-1"))
		synctest.Wait()
		got := broker.Messages("other")
		if len(got) != 1 || got[0].Headers.Get(header.CorrelationID) != "request-1" || got[0].Headers.Get(header.MessageIntent) != "Reply" {
			t.Fatalf("replies: %v", got)
		}
	})
}

func TestAPublishedEventReachesSubscribersOnceAndOthersNot(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var heard tally
		hears := func(name string) endpoint.Handler {
			return endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m *orderPlaced) error {
				heard.add(name + m.ID)
				return nil
			})
		}
		billing, shipping := sales(broker, hears("billing ")), sales(broker, hears("shipping "))
		billing.Name, shipping.Name = "billing", "shipping"
		start(t, billing)
		start(t, shipping)
		r := start(t, sales(broker))
		if err := r.Publish(t.Context(), &orderPlaced{ID: "7"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := strings.Join(heard.list(), ",")
		if got != "billing 7,shipping 7" && got != "shipping 7,billing 7" {
			t.Errorf("heard %q", got)
		}
	})
}

func TestHandlersOfAMessageRunInOrderAndAreTriedTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls tally
		first := endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error { calls.add("first"); return nil })
		second := endpoint.Handle(func(context.Context, *endpoint.Session, *placeOrder) error {
			if calls.add("second") < 4 {
				return errors.New("not yet")
			}
			return nil
		})
		start(t, sales(broker, first, second)).send(placeOrder{})
		synctest.Wait()
		if diff := cmp.Diff([]string{"first", "second", "first", "second"}, calls.list()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestABehaviorThatRepeatsHandlersSendsNothingOfTheFailedTries(t *testing.T) {
	for _, stage := range []string{"Invoke", "Logical", "Receive"} {
		t.Run(stage, func(t *testing.T) {
			inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var tries tally
				first := endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
					return s.Send(ctx, shipOrder{ID: "first"})
				})
				second := endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
					err := s.Send(ctx, shipOrder{ID: "second"})
					if tries.add(stage) == 1 {
						return errNo
					}
					return err
				})
				cfg := sales(broker, first, second)
				cfg.Recoverability = once
				switch p := &cfg.Pipeline; stage {
				case "Invoke":
					p.Invoke.Use("again", again)
				case "Logical":
					p.Logical.Use("again", again)
				case "Receive":
					p.Receive.Use("again", again)
				}
				start(t, cfg).send(placeOrder{})
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
			var all sync.WaitGroup
			errs := make([]error, 50)
			for i := range errs {
				all.Go(func() {
					_, err := s.Tx(ctx)
					errs[i] = errors.Join(err, s.Send(ctx, shipOrder{ID: s.Headers().Get(header.MessageID)}))
				})
			}
			all.Wait()
			return errors.Join(errs...)
		}))
		cfg.Transactions = endpoint.SendsAtomicWithReceive
		start(t, cfg).send(placeOrder{})
		synctest.Wait()
		if got := len(broker.Messages("shipping")); got != 50 {
			t.Errorf("%d messages left, want 50", got)
		}
	})
}

func TestASessionIsOverWhenItsHandlersHaveReturned(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var kept *endpoint.Session
		r := start(t, sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ placeOrder) error {
			kept = s
			return nil
		})))
		r.send(placeOrder{})
		synctest.Wait()
		if err := kept.Send(t.Context(), shipOrder{}); !errors.Is(err, endpoint.ErrSessionOver) {
			t.Errorf("got %v, want ErrSessionOver", err)
		}
	})
}

func TestConcurrencyIsReachedAndOneIsStrictlyInOrder(t *testing.T) {
	for _, n := range []int{1, 5} {
		inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var mu sync.Mutex
			now, most := 0, 0
			cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				now--
				mu.Unlock()
				return s.Send(ctx, shipOrder(m))
			}))
			cfg.Concurrency = n
			r := start(t, cfg)
			for _, id := range strings.Split("abcdefghij", "") {
				r.send(placeOrder{ID: id})
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

func TestStopLetsHandlersFinishAndLeavesTheRestInTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var done tally
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, m placeOrder) error {
			time.Sleep(10 * time.Second)
			done.add(m.ID)
			return ctx.Err()
		}))
		cfg.Concurrency = 2
		r := start(t, cfg)
		for _, id := range strings.Split("abcde", "") {
			r.send(placeOrder{ID: id})
		}
		time.Sleep(time.Second)
		r.end()
		if got := len(done.list()); got != 2 {
			t.Errorf("%d messages were handled, want the 2 that had begun", got)
		}
		if got := len(broker.Messages("sales")); got != 3 {
			t.Errorf("%d messages are left, want 3", got)
		}
		if err := r.Send(context.Background(), placeOrder{}); !errors.Is(err, endpoint.ErrNotRunning) {
			t.Errorf("Send after the end: %v", err)
		}
	})
}

func TestAHandlerCutByTheStopTimeoutGivesItsMessageBack(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ placeOrder) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		cfg.StopTimeout = 5 * time.Second
		r := start(t, cfg)
		r.send(placeOrder{})
		synctest.Wait()
		begin := time.Now()
		r.end()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("the stop took %v, want 5s", took)
		}
		if len(broker.Messages("sales")) != 1 || len(broker.Messages("error")) != 0 {
			t.Error("the message is not back in its queue")
		}
	})
}

func TestALostLeaseCancelsTheHandlerAndIsNoFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 10 * time.Second
		var broken atomic.Bool
		var givenUp tally
		broker.Fail = func(verb, _ string) error {
			switch {
			case broken.Load() && verb == "Renew":
				return errors.New("away")
			case verb == "Retry":
				givenUp.add(verb)
			}
			return nil
		}
		var causes tally
		r := start(t, sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
			if s.Attempt().N > 1 {
				return nil
			}
			broken.Store(true)
			<-ctx.Done()
			broken.Store(false)
			causes.add(context.Cause(ctx).Error())
			return ctx.Err()
		})))
		r.send(placeOrder{})
		time.Sleep(time.Minute)
		if got := causes.list(); len(got) != 1 || got[0] != transport.ErrLeaseLost.Error() {
			t.Errorf("causes %q, want one lost lease", got)
		}
		if got := givenUp.list(); len(got) != 1 {
			t.Errorf("the driver was told %d times that the message is given up, want once", len(got))
		}
		if len(broker.Messages("error")) != 0 || len(broker.Messages("sales")) != 0 {
			t.Error("the message was not handled the second time")
		}
	})
}

func TestBehaviorsOfEveryStageSeeTheirValue(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var trace tally
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			trace.add("handler " + m.ID + " " + s.Header("stamped"))
			return s.Send(ctx, shipOrder(m))
		}))
		p := &cfg.Pipeline
		p.Receive.Use("trace", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, in *pipeline.Receive) error {
				in.Headers.Set("stamped", "yes")
				trace.add("receive " + in.Queue)
				return next(ctx, in)
			}
		})
		p.Logical.Use("trace", func(next pipeline.Func[*pipeline.Logical]) pipeline.Func[*pipeline.Logical] {
			return func(ctx context.Context, in *pipeline.Logical) error {
				trace.add("logical " + in.Type)
				in.Value.(*placeOrder).ID += "!"
				return next(ctx, in)
			}
		})
		p.Invoke.Use("trace", func(next pipeline.Func[*pipeline.Invoke]) pipeline.Func[*pipeline.Invoke] {
			return func(ctx context.Context, in *pipeline.Invoke) error {
				trace.add("invoke " + in.Type)
				return next(ctx, in)
			}
		})
		p.Outgoing.Use("trace", func(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
			return func(ctx context.Context, out *pipeline.Outgoing) error {
				out.Headers.Set("tenant", "42")
				trace.add("outgoing " + out.Types[0])
				return next(ctx, out)
			}
		})
		p.Dispatch.Use("trace", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
			return func(ctx context.Context, d *pipeline.Dispatch) error {
				trace.add("dispatch " + d.Operations[0].Queue)
				return next(ctx, d)
			}
		})
		start(t, cfg).send(placeOrder{ID: "7"})
		synctest.Wait()
		want := []string{
			"outgoing Shop.PlaceOrder", "dispatch sales",
			"receive sales", "logical Shop.PlaceOrder", "invoke Shop.PlaceOrder", "handler 7! yes",
			"outgoing Shop.ShipOrder", "dispatch shipping",
		}
		if diff := cmp.Diff(want, trace.list()); diff != "" {
			t.Error(diff)
		}
		if got := broker.Messages("shipping"); len(got) != 1 || got[0].Headers.Get("tenant") != "42" {
			t.Errorf("sent %v", got)
		}
	})
}

func TestABehaviorThatEndsItsStageKeepsWhatComesAfterFromHappening(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls tally
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			calls.add(m.ID)
			return s.Send(ctx, shipOrder(m))
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
		r := start(t, cfg)
		r.send(placeOrder{ID: "dropped"}, endpoint.Header("drop", "1"))
		r.send(placeOrder{ID: "muted"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"muted"}, calls.list()); diff != "" {
			t.Error(diff)
		}
		stats := len(broker.Messages("shipping")) + len(broker.Messages("sales")) + len(broker.Messages("error"))
		if stats != 0 {
			t.Errorf("%d messages are somewhere, want both completed and nothing sent", stats)
		}
	})
}

func TestWhatABehaviorChangesInTheHeadersIsGoneAtTheNextAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var seen tally
		cfg := sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ placeOrder) error {
			seen.add(s.Header("stamp"))
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
		start(t, cfg).send(placeOrder{ID: "7"})
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{"x", "x", "x", "x"}, seen.list()); diff != "" {
			t.Error(diff)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get("stamp") != "" || string(failed[0].Body) != `{"ID":"7"}` {
			t.Errorf("error queue: %v", failed)
		}
	})
}
