package endpointtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/endpoint/endpointtest"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	placeOrder    struct{ ID string }
	orderPlaced   struct{ ID string }
	shipOrder     struct{ ID string }
	orderAccepted struct{ ID string }
)

type handler = func(context.Context, *endpoint.Session, placeOrder) error

// sales is a configuration to change; its handlers handle placeOrder.
func sales(handlers ...handler) endpoint.Config {
	cfg := endpoint.Config{
		Name: "sales",
		Messages: []endpoint.Message{
			endpoint.Command[placeOrder]("Shop.PlaceOrder"),
			endpoint.Command[shipOrder]("Shop.ShipOrder").To("shipping"),
			endpoint.Event[orderPlaced]("Shop.OrderPlaced", "Shop.IOrderEvent"),
			endpoint.Response[orderAccepted]("Shop.OrderAccepted"),
		},
	}
	for _, h := range handlers {
		cfg.Handlers = append(cfg.Handlers, endpoint.Handle(h))
	}
	return cfg
}

func handle(t *testing.T, cfg endpoint.Config, m any, opts ...endpoint.SendOption) endpointtest.Result {
	t.Helper()
	r, err := endpointtest.Handle(t.Context(), cfg, m, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func failing(err error) handler {
	return func(context.Context, *endpoint.Session, placeOrder) error { return err }
}

var errNoFunds = errors.New("no funds")

func TestWhatAHandlerSendsIsSeenInOrder(t *testing.T) {
	r := handle(t, sales(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
		return errors.Join(
			s.Send(ctx, &shipOrder{m.ID}, endpoint.After(time.Hour), endpoint.ExpireAfter(time.Minute)),
			s.Publish(ctx, orderPlaced(m)),
			s.Reply(ctx, orderAccepted(m), endpoint.Header("Colour", "red")),
		)
	}), placeOrder{"1"})

	if r.Outcome != endpointtest.Completed || r.Err != nil || r.Action != nil {
		t.Errorf("outcome %v, error %v, action %v", r.Outcome, r.Err, r.Action)
	}
	want := []endpointtest.Sent{
		{Value: shipOrder{"1"}, Intent: "Send", Queue: "shipping", Types: []string{"Shop.ShipOrder"}, Delay: time.Hour, TTL: time.Minute},
		{Value: orderPlaced{"1"}, Intent: "Publish", Types: []string{"Shop.OrderPlaced", "Shop.IOrderEvent"}},
		{Value: orderAccepted{"1"}, Intent: "Reply", Queue: endpointtest.Client, Types: []string{"Shop.OrderAccepted"}},
	}
	if diff := cmp.Diff(want, r.Sent, cmpopts.IgnoreFields(endpointtest.Sent{}, "Headers")); diff != "" {
		t.Error(diff)
	}
	last := r.Sent[2].Headers
	if last.Get("Colour") != "red" || last.Get(header.EnclosedMessageTypes) != "Shop.OrderAccepted" {
		t.Errorf("headers are not those on the wire: %v", last)
	}
}

func TestEveryOutcomeIsTold(t *testing.T) {
	for _, test := range []struct {
		action recoverability.Action
		want   endpointtest.Outcome
	}{
		{recoverability.Retry{}, endpointtest.Retried},
		{recoverability.Delay{For: time.Minute}, endpointtest.Delayed},
		{recoverability.MoveToError{Queue: "poison"}, endpointtest.MovedToError},
		{recoverability.DeadLetter{Reason: "old"}, endpointtest.DeadLettered},
		{recoverability.Discard{Reason: "old"}, endpointtest.Discarded},
	} {
		t.Run(test.want.String(), func(t *testing.T) {
			cfg := sales(failing(errNoFunds))
			cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action { return test.action }
			r := handle(t, cfg, placeOrder{"1"})
			if r.Outcome != test.want || r.Action != test.action {
				t.Errorf("outcome %v by %v, want %v by %v", r.Outcome, r.Action, test.want, test.action)
			}
			if !errors.Is(r.Err, errNoFunds) {
				t.Errorf("error is %v", r.Err)
			}
		})
	}
}

func TestAnActionThatIsImpossibleIsToldAsWhatWasDone(t *testing.T) {
	cfg := sales(failing(errNoFunds))
	cfg.Transactions = endpoint.None
	cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action { return recoverability.Retry{} }
	if r := handle(t, cfg, placeOrder{"1"}); r.Outcome != endpointtest.MovedToError {
		t.Errorf("outcome %v, want moved to error: mode None has no retries", r.Outcome)
	}
}

func TestRecoverabilityIsThatOfTheConfiguration(t *testing.T) {
	cfg := sales(failing(errNoFunds))
	cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: 2, Delays: recoverability.Delays{Delay: time.Minute}, ErrorQueue: "poison"}

	first := handle(t, cfg, placeOrder{"1"})
	if diff := cmp.Diff(recoverability.Action(recoverability.Delay{For: time.Minute}), first.Action); diff != "" {
		t.Error(diff)
	}
	last := handle(t, cfg, placeOrder{"1"}, endpoint.Header(header.Retries, "2"))
	if diff := cmp.Diff(recoverability.Action(recoverability.MoveToError{Queue: "poison"}), last.Action); diff != "" {
		t.Error(diff)
	}
}

func TestARetriedMessageIsHandledOnce(t *testing.T) {
	calls := 0
	r := handle(t, sales(func(context.Context, *endpoint.Session, placeOrder) error {
		calls++
		return errNoFunds
	}), placeOrder{"1"})
	if r.Outcome != endpointtest.Retried || calls != 1 {
		t.Errorf("outcome %v after %d calls, want retried after 1", r.Outcome, calls)
	}
}

func TestAFailedHandlerSendsOnlyWhatLeavesImmediately(t *testing.T) {
	r := handle(t, sales(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
		return errors.Join(
			s.Publish(ctx, orderPlaced(m)), s.Send(ctx, shipOrder(m), endpoint.Immediately()), errNoFunds)
	}), placeOrder{"1"})
	if len(r.Sent) != 1 || r.Sent[0].Value != (shipOrder{"1"}) {
		t.Errorf("sent %v, want the immediate one", r.Sent)
	}
}

func TestAPanicIsAFailure(t *testing.T) {
	r := handle(t, sales(func(context.Context, *endpoint.Session, placeOrder) error { panic("out of stock") }), placeOrder{"1"})
	var p *recoverability.PanicError
	if !errors.As(r.Err, &p) || p.Value != "out of stock" || r.Outcome != endpointtest.Retried {
		t.Errorf("error %v, outcome %v", r.Err, r.Outcome)
	}
}

// As t.FailNow does, when it is called in a handler.
func TestAHandlerThatEndsItsGoroutineHasFailed(t *testing.T) {
	r := handle(t, sales(func(context.Context, *endpoint.Session, placeOrder) error {
		runtime.Goexit()
		return nil
	}), placeOrder{"1"})
	if r.Outcome != endpointtest.Retried || r.Err == nil {
		t.Errorf("outcome %v, error %v: want a failure", r.Outcome, r.Err)
	}
}

func TestTheMessageArrivesAsItWouldFromElsewhere(t *testing.T) {
	var got []string
	r := handle(t, sales(func(_ context.Context, s *endpoint.Session, m placeOrder) error {
		got = []string{
			m.ID, s.MessageID(), s.Header("Colour"), s.Header(header.ReplyToAddress), s.Header(header.MessageIntent),
			s.Header(header.OriginatingEndpoint), s.Header(header.ConversationID), s.Header(header.DeliverAt), fmt.Sprint(s.Attempt().N),
		}
		return nil
	}), &placeOrder{"1"},
		endpoint.MessageID("m1"), endpoint.Header("Colour", "red"), endpoint.ReplyTo("web"), endpoint.Header(header.ConversationID, "c1"),
		endpoint.To("elsewhere"), endpoint.After(time.Hour), endpoint.At(time.Now().Add(time.Hour)), // without effect
		endpoint.Immediately(), endpoint.ReceiptIn(&transport.Receipt{}))

	if diff := cmp.Diff([]string{"1", "m1", "red", "web", "Send", endpointtest.Client, "c1", "", "1"}, got); diff != "" {
		t.Errorf("%s\noutcome %v, error %v", diff, r.Outcome, r.Err)
	}
}

func TestEventsAndResponsesAreHandledToo(t *testing.T) {
	var got []string
	cfg := sales()
	cfg.Handlers = []endpoint.Handler{
		endpoint.Handle(func(_ context.Context, s *endpoint.Session, m orderPlaced) error {
			got = append(got, s.Header(header.MessageIntent)+" "+m.ID)
			return nil
		}),
		endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m orderAccepted) error {
			got = append(got, m.ID)
			return nil
		}),
	}
	handle(t, cfg, orderPlaced{"1"}, endpoint.To("without effect"), endpoint.After(time.Hour))
	handle(t, cfg, orderAccepted{"2"})
	if diff := cmp.Diff([]string{"Publish 1", "2"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestAtomicHandlersCommitOrRollBack(t *testing.T) {
	for _, err := range []error{nil, errNoFunds} {
		written := false
		cfg := sales(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			return errors.Join(inmemory.OnCommit(ctx, s, func() { written = true }), s.Publish(ctx, orderPlaced(m)), err)
		})
		cfg.Transactions = endpoint.SendsAtomicWithReceive
		r := handle(t, cfg, placeOrder{"1"})
		if written != (err == nil) || (len(r.Sent) == 1) != (err == nil) || (r.Outcome == endpointtest.Completed) != (err == nil) {
			t.Errorf("handler error %v: written %v, sent %d, outcome %v (%v)", err, written, len(r.Sent), r.Outcome, r.Err)
		}
	}
}

func TestBehaviorsRun(t *testing.T) {
	cfg := sales(failing(nil))
	cfg.Pipeline.Dispatch.Use("audit", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
		return func(ctx context.Context, d *pipeline.Dispatch) error {
			d.Operations = append(d.Operations, transport.Operation{Queue: "audit", Message: &transport.Message{ID: "copy"}})
			return next(ctx, d)
		}
	})
	r := handle(t, cfg, placeOrder{"1"})
	if len(r.Sent) != 1 || r.Sent[0].Queue != "audit" || r.Sent[0].Value != nil {
		t.Errorf("sent %v, want the copy to audit", r.Sent)
	}
	if names := cfg.Pipeline.Dispatch.Names(); len(names) != 1 {
		t.Errorf("the caller's pipeline has %q now", names)
	}
}

func TestWhatTheRecoverStageSendsIsSeenUnlessItFails(t *testing.T) {
	for name, test := range map[string]struct {
		after func() error
		want  int
	}{
		"well":   {func() error { return nil }, 1},
		"fails":  {func() error { return errNoFunds }, 0},
		"panics": {func() error { panic("in Recover") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sales(failing(errNoFunds))
			cfg.Pipeline.Recover.Use("tell", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
				return func(ctx context.Context, rec *pipeline.Recover) error {
					rec.Action = recoverability.MoveToError{Queue: "poison"}
					if err := errors.Join(rec.Sender().Publish(ctx, orderPlaced{"failed"}), test.after()); err != nil {
						return err
					}
					return next(ctx, rec)
				}
			})
			r := handle(t, cfg, placeOrder{"1"})
			if len(r.Sent) != test.want || r.Outcome != endpointtest.MovedToError {
				t.Errorf("sent %v, outcome %v: want %d messages, moved to error", r.Sent, r.Outcome, test.want)
			}
		})
	}
}

func TestTimePassesAsTheHandlerNeedsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := handle(t, sales(func(context.Context, *endpoint.Session, placeOrder) error {
			time.Sleep(time.Hour)
			return recoverability.RetryAfter(errNoFunds, 24*time.Hour)
		}), placeOrder{"1"})
		if took := time.Since(began); took != time.Hour || r.Outcome != endpointtest.Delayed {
			t.Errorf("%v after %v, want delayed after an hour", r.Outcome, took)
		}
	})
}

func TestTheContextBoundsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Minute)
		defer cancel()
		var value any
		began := time.Now()
		_, err := endpointtest.Handle(ctx, sales(func(ctx context.Context, _ *endpoint.Session, _ placeOrder) error {
			value = ctx.Value(key{})
			<-ctx.Done()
			return ctx.Err()
		}), placeOrder{"1"})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v, want that of the context", err)
		}
		if took := time.Since(began).Round(time.Millisecond); took != time.Minute {
			t.Errorf("it took %v, want the minute that the context has", took)
		}
		if value != "value" {
			t.Errorf("the handler's context has %v, want the caller's value", value)
		}
	})
}

func TestMistakesOfTheCallerAreErrors(t *testing.T) {
	type unknown struct{}
	sendOnly := sales()
	sendOnly.SendOnly = true
	for name, test := range map[string]struct {
		cfg  endpoint.Config
		m    any
		want string
	}{
		"unregistered": {sales(failing(nil)), unknown{}, "not registered"},
		"nil message":  {sales(failing(nil)), nil, "the message is nil"},
		"bad config":   {endpoint.Config{Messages: []endpoint.Message{{}}}, placeOrder{}, "a zero Message"},
		"bad handlers": {endpoint.Config{Messages: sales().Messages, Handlers: []endpoint.Handler{{}}}, placeOrder{}, "a zero Handler"},
		"send-only":    {sendOnly, placeOrder{}, "send-only"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := endpointtest.Handle(t.Context(), test.cfg, test.m)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
		})
	}
}

func TestAMessageWithoutAHandlerGoesToTheErrorQueue(t *testing.T) {
	r := handle(t, sales(), shipOrder{"1"})
	if r.Outcome != endpointtest.MovedToError || r.Err == nil {
		t.Errorf("outcome %v, error %v", r.Outcome, r.Err)
	}
}

func TestManyRunSideBySide(t *testing.T) {
	cfg := sales(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
		return s.Publish(ctx, orderPlaced(m))
	})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			id := fmt.Sprint(i)
			r, err := endpointtest.Handle(t.Context(), cfg, placeOrder{id})
			if err != nil || len(r.Sent) != 1 || r.Sent[0].Value != (orderPlaced{id}) {
				t.Errorf("order %s: %v, %v", id, r, err)
			}
		})
	}
	wg.Wait()
}
