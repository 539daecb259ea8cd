package endpoint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// trouble is the behavior of a function for the message "bad".
type trouble struct {
	do      string // hang, panic or goexit
	release chan struct{}
}

func (tr *trouble) strike(id string) {
	if id != "bad" {
		return
	}
	switch tr.do {
	case "hang":
		tr.hangDeepInside()
	case "panic":
		panic("oh no")
	case "goexit":
		runtime.Goexit()
	}
}

//go:noinline
func (tr *trouble) hangDeepInside() { <-tr.release }

// translating is a broker whose user has a function that changes received messages.
type translating struct {
	transport.Transport
	f func(*transport.Message)
}

func (b *translating) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return translatingConn{conn.(satelliteConn), b.f}, nil
}

type satelliteConn interface {
	fullConn
	transport.Satellites
}

type translatingConn struct {
	satelliteConn
	f func(*transport.Message)
}

func (c translatingConn) Translation() func(*transport.Message) { return c.f }

// fragile is a message whose decoding may be trouble.
type fragile struct{ ID string }

// decoding is the trouble of the messages that are decoded; nil for none.
var decoding atomic.Pointer[trouble]

func (f *fragile) UnmarshalJSON(text []byte) error {
	type plain fragile
	if err := json.Unmarshal(text, (*plain)(f)); err != nil {
		return err
	}
	if tr := decoding.Load(); tr != nil {
		tr.strike(f.ID)
	}
	return nil
}

// userFunction is a kind of function of the program.
type userFunction struct {
	name  string // as in Health
	fails bool   // the handler of "bad" fails
	left  bool   // the endpoint continues without the function
	set   func(cfg *endpoint.Config, tr *trouble)
	key   bool // it is the key function of the handler
}

func stageOf[T any](tr *trouble, id func(T) string) pipeline.Behavior[T] {
	return func(next pipeline.Func[T]) pipeline.Func[T] {
		return func(ctx context.Context, in T) error {
			tr.strike(id(in))
			return next(ctx, in)
		}
	}
}

var userFunctions = map[string]userFunction{
	"Translate": {name: "Transport.Translate", set: func(cfg *endpoint.Config, tr *trouble) {
		cfg.Transport = &translating{cfg.Transport, func(m *transport.Message) { tr.strike(m.ID) }}
	}},
	"decoding": {name: "the decoding of the message", set: func(_ *endpoint.Config, tr *trouble) { decoding.Store(tr) }},
	"key":      {name: "the key function of endpoint_test.", key: true, set: func(*endpoint.Config, *trouble) {}},
	"Policy": {name: "Recoverability.Policy", fails: true, set: func(cfg *endpoint.Config, tr *trouble) {
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			tr.strike(f.MessageID)
			return f.Decide()
		}
	}},
	"matcher": {name: "Recoverability.Policy, or a matcher", fails: true, set: func(cfg *endpoint.Config, tr *trouble) {
		cfg.Recoverability.Unrecoverable = []recoverability.Matcher{func(error) bool { tr.strike("bad"); return false }}
	}},
	"matcher with a rate limit": {name: "a matcher of Recoverability", fails: true, set: func(cfg *endpoint.Config, tr *trouble) {
		cfg.Recoverability.Unrecoverable = []recoverability.Matcher{func(error) bool { tr.strike("bad"); return false }}
		cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 100, Delay: time.Second}
	}},
	"FaultHeaders": {name: "Recoverability.FaultHeaders", fails: true, set: func(cfg *endpoint.Config, tr *trouble) {
		cfg.Recoverability.FaultHeaders = func(_ *header.Map, f recoverability.Failure) { tr.strike(f.MessageID) }
	}},
	"OnFinalFailure": {name: "Config.OnFinalFailure", fails: true, set: func(cfg *endpoint.Config, tr *trouble) {
		cfg.OnFinalFailure = func(_ context.Context, _ *endpoint.Session, f recoverability.Failure) error {
			tr.strike(f.MessageID)
			return nil
		}
	}},
	"Recover": {name: "a behavior of stage Recover", fails: true, set: func(cfg *endpoint.Config, tr *trouble) {
		cfg.Pipeline.Recover.Use("bad", stageOf(tr, func(r *pipeline.Recover) string { return r.Message.ID }))
	}},
	"Dispatch": {name: "a behavior of stage Dispatch", set: func(cfg *endpoint.Config, tr *trouble) {
		cfg.Pipeline.Dispatch.Use("bad", stageOf(tr, func(d *pipeline.Dispatch) string {
			if d.Incoming == nil {
				return ""
			}
			return d.Incoming.Message.ID
		}))
	}},
	"Notify": {name: "function 2 of Config.Notify", fails: true, left: true, set: func(cfg *endpoint.Config, tr *trouble) {
		cfg.Notify = []func(context.Context, recoverability.Notification){
			func(context.Context, recoverability.Notification) {},
			func(_ context.Context, n recoverability.Notification) { tr.strike(n.Failure.MessageID) },
		}
	}},
}

// eachFunction runs test with each kind of function, in an endpoint with three slots.
func eachFunction(t *testing.T, do string, test func(t *testing.T, f userFunction, tr *trouble, r *troubled)) {
	t.Helper()
	for name, f := range userFunctions {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				defer decoding.Store(nil)
				tr := &trouble{do, make(chan struct{})}
				r := startTroubled(t, broker, f, tr, 3)
				r.send(t, "bad")
				for i := range 40 {
					r.send(t, fmt.Sprint(i))
				}
				test(t, f, tr, r)
			})
		})
	}
}

// startTroubled starts an endpoint with a trouble of the function f. Its handler fails the message
// "bad" if f is called for messages that fail.
func startTroubled(t *testing.T, broker *inmemory.Transport, f userFunction, tr *trouble, concurrency int) *troubled {
	t.Helper()
	r := &troubled{broker: broker}
	handle := func(_ context.Context, _ *endpoint.Session, m fragile) error {
		if m.ID == "bad" && f.fails {
			return errNo
		}
		r.handled.Add(m.ID)
		return nil
	}
	handler := endpoint.Handle(handle)
	if f.key {
		handler = endpoint.HandleInOrderBy(func(m fragile) string { tr.strike(m.ID); return m.ID }, handle)
	}
	cfg := harness.Sales(broker, handler)
	cfg.Messages = append(cfg.Messages, endpoint.Command[fragile]("Shop.Fragile").To("sales"))
	cfg.Concurrency, cfg.StopTimeout, cfg.Recoverability = concurrency, 10*time.Second, once
	cfg.Logger = slog.New(slog.NewTextHandler(&r.log, nil))
	f.set(&cfg, tr)
	e, err := endpoint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Endpoint = e
	r.run(t)
	return r
}

// troubled is an endpoint that runs with a trouble.
type troubled struct {
	*endpoint.Endpoint
	broker  *inmemory.Transport
	handled harness.Tally
	log     harness.Log
	stop    context.CancelFunc
	done    chan error
}

func (r *troubled) run(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r.stop, r.done = stop, make(chan error, 1)
	go func() { r.done <- r.Run(ctx) }()
	if err := r.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

func (r *troubled) send(t *testing.T, id string) {
	t.Helper()
	if err := r.Send(t.Context(), fragile{ID: id}, endpoint.MessageID(id)); err != nil {
		t.Fatal(err)
	}
}

// others returns how many messages beside "bad" were handled.
func (r *troubled) others() int {
	return len(slices.DeleteFunc(r.handled.List(), func(id string) bool { return id == "bad" }))
}

// A function that hangs takes one slot. The log and Health name the function and its message, and
// Run returns without the function.
func TestAHangingFunctionTakesOneSlot(t *testing.T) {
	eachFunction(t, "hang", func(t *testing.T, f userFunction, tr *trouble, r *troubled) {
		after(20 * time.Second)
		if n := r.others(); n != 40 {
			t.Errorf("%d other messages are handled, want 40", n)
		}
		health := r.Health()
		if text := fmt.Sprint(health.Warnings); !health.Ready || !strings.Contains(text, f.name) || !strings.Contains(text, `(message "bad")`) {
			t.Errorf("health: %+v", health)
		}
		lines := r.log.Lines("a function of the program has not returned")
		if len(lines) != 1 || !strings.Contains(lines[0], f.name) || !strings.Contains(lines[0], "message=bad") || !strings.Contains(lines[0], "hangDeepInside") {
			t.Errorf("the log has %q", lines)
		}
		r.stop()
		began := time.Now()
		err := <-r.done
		if took := time.Since(began); took > 16*time.Second {
			t.Errorf("Run returned after %v", took)
		}
		if stuck, ok := errors.AsType[*endpoint.StuckError](err); f.left {
			if err != nil {
				t.Errorf("Run returned %v", err)
			}
		} else if !ok || len(stuck.Handlers) != 1 || !strings.HasPrefix(stuck.Handlers[0].Handler, f.name) || stuck.Handlers[0].MessageID != "bad" {
			t.Errorf("Run returned %v", err)
		}
		close(tr.release)
		after(time.Minute)
	})
}

// Functions that hang without a slot let messages start, until as many hang as messages may settle.
// Only then the endpoint is not ready.
func TestHangingFunctionsWithoutSlots(t *testing.T) {
	for _, name := range []string{"Dispatch", "Recover", "Policy", "OnFinalFailure"} {
		for concurrency, most := range map[int]int{1: 1, 2: 2 + 4*2} {
			t.Run(fmt.Sprint(name, " ", concurrency), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					f, tr := userFunctions[name], &trouble{"hang", make(chan struct{})}
					r := startTroubled(t, broker, f, tr, concurrency)
					hangWithoutSlots(t, r, f, concurrency, most)
					close(tr.release)
					after(time.Minute)
					if h := r.Health(); !h.Ready || !slices.Contains(r.handled.List(), "late") {
						t.Errorf("after the functions have returned: %+v", h)
					}
					r.stop()
					if err := <-r.done; err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// hangWithoutSlots has the function hang until no message starts, which takes most messages.
func hangWithoutSlots(t *testing.T, r *troubled, f userFunction, slots, most int) {
	t.Helper()
	for range most - 1 {
		r.send(t, "bad")
	}
	r.send(t, "good")
	after(time.Minute)
	if h := r.Health(); !h.Ready || h.Queues[0].Settling != most-1 || r.others() != 1 {
		t.Errorf("while %d functions hang: %+v", most-1, h)
	}
	r.send(t, "bad")
	after(time.Minute)
	want := fmt.Sprintf(
		`all %d slots of "sales" are taken by calls that do not return: %s`, slots, f.name)
	if h := r.Health(); h.Ready || len(h.Reasons) != 1 || !strings.HasPrefix(h.Reasons[0], want) {
		t.Errorf("while %d functions hang: %+v", most, h)
	}
	r.send(t, "late")
	after(time.Minute)
	if r.others() != 1 {
		t.Errorf("handled are %q", r.handled.List())
	}
}

// A function that hangs once and returns later changes nothing: each message is settled.
func TestAFunctionThatReturnsLateLosesNothing(t *testing.T) {
	eachFunction(t, "hang", func(t *testing.T, f userFunction, tr *trouble, r *troubled) {
		after(time.Minute)
		close(tr.release)
		after(time.Second)
		if health := r.Health(); !health.Ready || len(health.Warnings) > 0 {
			t.Errorf("after the function has returned: %+v", health)
		}
		r.wantAllSettled(t, f.fails)
	})
}

// A function that panics or ends its goroutine fails its message at most.
func TestAFunctionThatEndsItsGoroutine(t *testing.T) {
	for _, do := range []string{"panic", "goexit"} {
		t.Run(do, func(t *testing.T) {
			eachFunction(t, do, func(t *testing.T, f userFunction, _ *trouble, r *troubled) {
				after(time.Minute)
				if health := r.Health(); !health.Ready || len(health.Warnings) > 0 {
					t.Errorf("health: %+v", health)
				}
				// A function that is called for each message of a handler that succeeds fails its
				// message.
				r.wantAllSettled(t, true)
			})
		})
	}
}

// wantAllSettled fails unless all messages are handled, but for "bad" if that is to be in the error
// queue.
func (r *troubled) wantAllSettled(t *testing.T, failed bool) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("Run returned %v", err)
	}
	if n := r.others(); n != 40 {
		t.Errorf("%d other messages are handled, want 40", n)
	}
	inError := len(r.broker.Messages("error"))
	if failed && inError != 1 || !failed && (inError != 0 || !slices.Contains(r.handled.List(), "bad")) {
		t.Errorf("%d messages are in the error queue, and handled are %q", inError, r.handled.List())
	}
	if n := statsIn(t, r.broker, "sales").Ready; n != 0 {
		t.Errorf("%d messages are left in the queue", n)
	}
}

// Messages behind one whose key is not known wait for it, and not for ever. They keep their order.
func TestALateKeyHoldsUpOthersForAWhile(t *testing.T) {
	const function, behavior = 10 * time.Second, 10 * time.Minute
	for name, tt := range map[string]struct {
		late time.Duration
		set  func(cfg *endpoint.Config, tr *trouble)
	}{
		"key": {function, func(cfg *endpoint.Config, tr *trouble) {}},
		"Translate": {function, func(cfg *endpoint.Config, tr *trouble) {
			cfg.Transport = &translating{cfg.Transport, func(m *transport.Message) { tr.strike(m.ID) }}
		}},
		"behavior": {behavior, func(cfg *endpoint.Config, tr *trouble) {
			cfg.Pipeline.Receive.Use("bad", stageOf(tr, func(r *pipeline.Receive) string { return r.Message.ID }))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				tr := &trouble{"hang", make(chan struct{})}
				var l ledger
				key := func(o harness.PlaceOrder) string {
					if name == "key" {
						tr.strike(o.ID)
					}
					return byKey(o)
				}
				cfg := harness.Sales(broker, endpoint.HandleInOrderBy(key, l.taking(always(time.Millisecond))))
				cfg.Concurrency = 4
				tt.set(&cfg, tr)
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{ID: "bad"}, endpoint.MessageID("bad"))
				sendKeyed(r, "a", 0, 30)
				after(tt.late - time.Second)
				if n := len(l.of("a")); n != 0 {
					t.Errorf("%d messages are handled before the key of an earlier one is known", n)
				}
				after(4 * time.Second)
				l.inOrder(t, "a", 30)
				sendKeyed(r, "b", 0, 30)
				after(time.Second)
				l.inOrder(t, "b", 30)
				close(tr.release)
				after(time.Second)
				if got := l.of("bad"); len(got) != 1 {
					t.Errorf("the message whose key came late: handled %q", got)
				}
			})
		})
	}
}

// The time of the broker does not count as that of a behavior around its call.
func TestASlowBrokerIsNoHangingBehavior(t *testing.T) {
	for name, fails := range map[string]bool{"Dispatch": false, "Recover": true} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Fail = func(verb, _ string) error {
					if verb == "Complete" || verb == "CompleteWith" {
						time.Sleep(time.Minute)
					}
					return nil
				}
				cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
					if fails {
						return errNo
					}
					return nil
				}))
				cfg.Recoverability, cfg.StopTimeout = once, time.Hour
				tr := &trouble{}
				cfg.Pipeline.Dispatch.Use("a", stageOf(tr, func(*pipeline.Dispatch) string { return "" }))
				cfg.Pipeline.Recover.Use("a", stageOf(tr, func(*pipeline.Recover) string { return "" }))
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{})
				after(30 * time.Second)
				if h := r.Health(); len(h.Warnings) > 0 || h.Queues[0].Settling != 1 {
					t.Errorf("while the broker is slow: %+v", h)
				}
			})
		})
	}
}

// A handler that runs for long is no function that hangs.
func TestALongHandlerIsNoHangingFunction(t *testing.T) {
	handle := func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
		time.Sleep(time.Minute)
		return nil
	}
	for name, handler := range map[string]endpoint.Handler{
		"with a key": endpoint.HandleInOrderBy(byKey, handle), "without a key": endpoint.Handle(handle),
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := harness.Sales(broker, handler)
				cfg.Concurrency = 1
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{ID: "1"})
				after(30 * time.Second)
				if h := r.Health(); !h.Ready || len(h.Warnings) > 0 || h.Queues[0].Handling != 1 {
					t.Errorf("%+v", h)
				}
				after(time.Minute)
			})
		})
	}
}

// Functions of Notify that the endpoint has left take no slots.
func TestHangingNotifyFunctionsTakeNoSlots(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		release := make(chan struct{})
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Concurrency, cfg.Recoverability = 2, once
		cfg.Notify = append(cfg.Notify, func(context.Context, recoverability.Notification) { <-release })
		r := harness.Start(t, cfg)
		r.MustSendMany(4)
		after(20 * time.Second)
		if h := r.Health(); !h.Ready || len(h.Warnings) != 1 || !strings.Contains(h.Warnings[0], "function 1 of Config.Notify") {
			t.Errorf("%+v", h)
		}
		close(release)
		after(time.Second)
		if h := r.Health(); len(h.Warnings) > 0 {
			t.Errorf("after the functions have returned: %q", h.Warnings)
		}
	})
}

// Translate changes the messages of each queue that the endpoint receives from.
func TestMessagesOfEachQueueAreTranslated(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var seen harness.Tally
		broker.CreateQueues("dead", "sales.quarantine")
		broker.Satellites = []transport.Satellite{{
			Queue: "dead", Handle: func(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
				seen.Add("dead: " + m.ID)
				return nil, nil
			},
		}}
		cfg := harness.Sales(&translating{broker, func(m *transport.Message) {
			m.ID += "-translated"
			m.Headers.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
		}}, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			seen.Add("sales: " + s.MessageID())
			return nil
		}))
		for _, queue := range []string{"dead", "sales.quarantine"} {
			if err := broker.Put(queue, &transport.Message{ID: queue, Body: []byte("{}")}); err != nil {
				t.Fatal(err)
			}
		}
		harness.Start(t, cfg)
		after(time.Minute)
		got := seen.List()
		slices.Sort(got)
		if text := strings.Join(got, ", "); text != "dead: dead-translated, sales: sales.quarantine-translated" {
			t.Errorf("seen are %s", text)
		}
	})
}

// Run does not wait for a function of Notify that began before the end of StopTimeout.
func TestRunReturnsWithoutStuckNotify(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		release := make(chan struct{})
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.StopTimeout, cfg.Recoverability = time.Second, once
		cfg.Notify = append(cfg.Notify, func(context.Context, recoverability.Notification) { <-release })
		e, err := endpoint.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r := &troubled{Endpoint: e}
		r.run(t)
		if err := e.Send(t.Context(), harness.PlaceOrder{}, endpoint.MessageID("m")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.stop()
		began := time.Now()
		stuck, ok := errors.AsType[*endpoint.StuckError](<-r.done)
		if !ok || len(stuck.Handlers) != 1 || stuck.Handlers[0].Handler != "function 1 of Config.Notify" || stuck.Handlers[0].MessageID != "m" {
			t.Errorf("Run returned %v", stuck)
		}
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("Run returned after %v", took)
		}
		close(release)
		after(time.Minute)
	})
}

// A behavior of the Relay stage that hangs is named, and Run returns without it.
func TestAHangingRelayBehaviorIsNamed(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		release := make(chan struct{})
		cfg := storing(broker, db, new(harness.Tally))
		cfg.StopTimeout = 5 * time.Second
		cfg.Pipeline.Relay.Use("hang", func(pipeline.Func[*pipeline.Relay]) pipeline.Func[*pipeline.Relay] {
			return func(context.Context, *pipeline.Relay) error {
				<-release
				return errNo
			}
		})
		e, err := endpoint.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r := &troubled{Endpoint: e}
		r.run(t)
		if err := e.Send(t.Context(), harness.ShipOrder{ID: "1"}, endpoint.ViaOutbox()); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Minute)
		if text := fmt.Sprint(e.Health().Warnings); !strings.Contains(text, "a behavior of stage Relay") {
			t.Errorf("warnings: %s", text)
		}
		r.stop()
		began := time.Now()
		stuck, ok := errors.AsType[*endpoint.StuckError](<-r.done)
		if !ok || len(stuck.Handlers) == 0 || stuck.Handlers[0].Handler != "a behavior of stage Relay" {
			t.Errorf("Run returned %v", stuck)
		}
		if took := time.Since(began); took > 13*time.Second {
			t.Errorf("Run returned after %v", took)
		}
		close(release)
		after(time.Minute)
	})
}

// A message is what Translate makes of it: for the handler, the inbox and the error queue. The
// driver's own message and other deliveries of the message are not changed.
func TestATranslatedMessageIsProcessed(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var seen, handled harness.Tally
		translate := func(m *transport.Message) {
			seen.Add(m.ID + " " + string(m.Body) + " " + m.Native["n"])
			m.ID = m.Native["n"]
			m.Headers.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
			copy(m.Body, `{"ID":"y"}`)
			m.Native["n"] = "changed"
		}
		cfg := storing(broker, db, new(harness.Tally))
		cfg.Transport = &translating{broker, translate}
		cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(_ context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if handled.Add(s.MessageID()+" "+o.ID) == 1 {
				return errNo
			}
			return nil
		})}
		harness.Start(t, cfg)
		for _, id := range []string{"raw-1", "raw-2"} { // one message for the inbox
			m := &transport.Message{ID: id, Body: []byte(`{"ID":"x"}`), Native: map[string]string{"n": "own"}}
			if err := broker.Put("sales", m); err != nil {
				t.Fatal(err)
			}
			after(time.Minute)
		}
		if got := strings.Join(handled.List(), ", "); got != "own y, own y" {
			t.Errorf("handled are %s: want one failure, and one success of the message with two deliveries", got)
		}
		want := `raw-1 {"ID":"x"} own, raw-1 {"ID":"x"} own, raw-2 {"ID":"x"} own`
		if got := strings.Join(seen.List(), ", "); got != want {
			t.Errorf("Translate has seen %s, want %s", got, want)
		}
	})
}

var errImpatient = errors.New("impatient")

// impatient waits a second for the first call of next, and leaves it behind.
func impatient[T any](calls *atomic.Int64) pipeline.Behavior[T] {
	return func(next pipeline.Func[T]) pipeline.Func[T] {
		return func(ctx context.Context, in T) error {
			if calls.Add(1) > 1 {
				return next(ctx, in)
			}
			done := make(chan error, 1)
			go func() { done <- next(ctx, in) }()
			select {
			case err := <-done:
				return err
			case <-time.After(time.Second):
				return errImpatient
			}
		}
	}
}

func inline(cfg *endpoint.Config) {
	cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
		return recoverability.RetryInline{}
	}
}

// A call that a behavior has left behind has no effect on the limit of the next attempt.
func TestEachAttemptHasALimitOfItsOwn(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log harness.Log
		var calls, handled atomic.Int64
		release := make(chan struct{})
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			if handled.Add(1) == 1 {
				time.Sleep(2500 * time.Millisecond)
			} else {
				<-release
			}
			return nil
		}))
		cfg.HandlerTimeout = 3 * time.Second
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		inline(&cfg)
		cfg.Pipeline.Invoke.Use("impatient", impatient[*pipeline.Invoke](&calls))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		after(20 * time.Second)
		if handled.Load() != 2 {
			t.Fatalf("%d attempts", handled.Load())
		}
		if lines := log.Lines("a handler has not returned within its time limit"); len(lines) != 1 {
			t.Errorf("the log has %q", lines)
		}
		close(release)
	})
}
