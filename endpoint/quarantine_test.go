package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// mortal is a transport whose process can be killed: to the broker that is a connection that
// closes, and nothing that the process does afterwards reaches it.
type mortal struct {
	*inmemory.Transport

	mu   sync.Mutex
	conn transport.Conn
	kill context.CancelFunc
}

func (m *mortal) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := m.Transport.Open(ctx, env)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conn = conn
	return conn, err
}

// die ends the process from within a handler.
func (m *mortal) die() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kill()
	_ = m.conn.Close()
	return errors.New("of a process that does not exist any more")
}

// supervise runs the endpoint, and another each time that it dies, until stop. It returns how often
// it died.
func (m *mortal) supervise(t *testing.T, cfg endpoint.Config, stop <-chan struct{}) (deaths int) {
	cfg.StopTimeout = time.Millisecond
	for {
		e, err := endpoint.New(cfg)
		if err != nil {
			t.Error(err)
			return deaths
		}
		ctx, cancel := context.WithCancel(t.Context())
		m.mu.Lock()
		m.kill = cancel
		m.mu.Unlock()
		over := make(chan struct{})
		go func() {
			select {
			case <-stop:
				cancel()
			case <-over:
			}
		}()
		err = e.Run(ctx)
		close(over)
		cancel()
		select {
		case <-stop:
			return deaths
		default:
			deaths++
		}
		if err != nil && !errors.Is(err, transport.ErrClosed) {
			t.Errorf("the endpoint ended with %v", err)
		}
	}
}

// wire is a PlaceOrder on the wire.
func wire(id string) *transport.Message {
	return &transport.Message{
		ID: id, Body: fmt.Appendf(nil, `{"ID":%q}`, id),
		Headers: header.New(header.Field{Name: header.MessageID, Value: id}, header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"}),
	}
}

// delivered puts a message into a queue that has been delivered n times.
func delivered(t *testing.T, broker *inmemory.Transport, queue string, m *transport.Message, n int) {
	t.Helper()
	broker.CreateQueues(queue)
	conn, err := broker.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Put(queue, m); err != nil {
		t.Fatal(err)
	}
	for range n {
		ds, err := r.Receive(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			settle := d.Release // that does not count
			if d.Message().ID == m.ID {
				settle = d.Retry
			}
			if err := settle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestAMessageThatEndsTheProcessIsParkedAndNoOther(t *testing.T) {
	for _, concurrency := range []int{1, 16} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			const messages = 60
			m := &mortal{Transport: broker}
			var poisonous, handled harness.Tally
			cfg := harness.Sales(m, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
				if o.ID == "m-7" || o.ID == "m-31" {
					poisonous.Add(o.ID)
					return m.die()
				}
				time.Sleep(time.Second)
				handled.Add(o.ID)
				return nil
			}))
			cfg.Concurrency = concurrency
			broker.CreateQueues("sales")
			for i := range messages {
				if err := broker.Put("sales", wire(fmt.Sprint("m-", i))); err != nil {
					t.Fatal(err)
				}
			}
			stop := make(chan struct{})
			time.AfterFunc(time.Hour, func() { close(stop) })
			if deaths := m.supervise(t, cfg, stop); deaths > 18 {
				t.Errorf("the process died %d times, want at most 9 for each of the two", deaths)
			}
			for _, id := range []string{"m-7", "m-31"} {
				if n := count(poisonous.List(), id); n > 9 {
					t.Errorf("%s was handled %d times, want at most 6 in its queue and 3 in quarantine", id, n)
				}
			}
			var parked []string
			for _, f := range broker.Messages("error") {
				parked = append(parked, f.ID)
				if class := f.Headers.Get(header.FailedQ); class != "sales" {
					t.Errorf("%s is %q of %s", header.FailedQ, class, f.ID)
				}
				if q, n := f.Headers.Get(header.HoldfastFaultQuarantined), f.Headers.Get(header.HoldfastAttempts); q != "7" || n != "4" {
					t.Errorf("%s was delivered %q times, then %q times in quarantine", f.ID, q, n)
				}
				if text := f.Headers.Get(header.ExceptionMessage); !strings.Contains(text, "lost the message 3 times") {
					t.Errorf("error text %q", text)
				}
				for name := range f.Headers.All() {
					if strings.HasPrefix(name, "Holdfast.Quarantine.") {
						t.Errorf("the error copy still has %s", name)
					}
				}
			}
			slices.Sort(parked)
			if diff := cmp.Diff([]string{"m-31", "m-7"}, parked); diff != "" {
				t.Errorf("concurrency %d: parked (-want +got):\n%s", concurrency, diff)
			}
			done := map[string]bool{}
			for _, id := range handled.List() {
				done[id] = true
			}
			if len(done) != messages-2 {
				t.Errorf("concurrency %d: %d were handled, want %d", concurrency, len(done), messages-2)
			}
			for _, q := range []string{"sales", "sales.quarantine"} {
				if left := broker.Messages(q); len(left) > 0 {
					t.Errorf("%d are left in %s", len(left), q)
				}
			}
		})
	}
}

func count(list []string, s string) (n int) {
	for _, other := range list {
		if other == s {
			n++
		}
	}
	return n
}

func TestASuspectIsHandledAloneAndAsAnyOther(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var running, beside atomic.Int32
		var seen, told harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			running.Add(1)
			defer running.Add(-1)
			time.Sleep(time.Second)
			if o.ID == "suspect" {
				beside.Add(running.Load() - 1)
				seen.Add(fmt.Sprint(s.Attempt().N, " ", s.Header(header.HoldfastQuarantineQueue), s.Headers().Len()))
			}
			return nil
		}))
		cfg.AuditQueue = "other"
		cfg.Notify = telling(&told)
		var received string
		cfg.Pipeline.Receive.Use("look", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, in *pipeline.Receive) error {
				if in.Message.ID == "suspect" {
					received = in.Queue
				}
				return next(ctx, in)
			}
		})
		delivered(t, broker, "sales", wire("suspect"), 6)
		r := harness.Start(t, cfg)
		for range 200 {
			r.MustSend(harness.PlaceOrder{ID: "x"})
		}
		time.Sleep(10 * time.Minute)
		if diff := cmp.Diff([]string{"1 2"}, seen.List()); diff != "" {
			t.Errorf("the handler saw (-want +got):\n%s", diff)
		}
		if n := beside.Load(); n != 0 {
			t.Errorf("%d were handled beside it", n)
		}
		if received != "sales" {
			t.Errorf("behaviors saw queue %q", received)
		}
		if diff := cmp.Diff([]string{"quarantined to sales.quarantine"}, told.List()); diff != "" {
			t.Error(diff)
		}
		audited := broker.Messages("other")
		if len(audited) != 201 {
			t.Errorf("%d audit copies", len(audited))
		}
		for _, a := range audited {
			if _, ok := a.Headers.Lookup(header.HoldfastQuarantineQueue); ok {
				t.Error("the audit copy tells of quarantine")
			}
		}
	})
}

// After an ordinary failure in quarantine, the policy decides as elsewhere.
func TestAFailureInQuarantineFollowsThePolicy(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: 1}
		delivered(t, broker, "sales", wire("m"), 3)
		harness.Start(t, cfg)
		time.Sleep(time.Second)
		if diff := cmp.Diff([]string{"1"}, calls.List()); diff != "" {
			t.Fatalf("in quarantine (-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"1", "1", "2", "3"}, calls.List()); diff != "" {
			t.Errorf("with the delayed cycle (-want +got):\n%s", diff)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get(header.FailedQ) != "sales" || failed[0].Headers.Get(header.HoldfastQuarantineQueue) != "" {
			t.Errorf("the error queue has %v", failed)
		}
	})
}

// For handlers and copies, a message in quarantine is a message of its former queue.
func TestAQuarantinedMessageKeepsItsQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Instance, cfg.InstanceQueue = "blue", true
		cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
		delivered(t, broker, "sales-blue", wire("m"), 3)
		harness.Start(t, cfg)
		time.Sleep(time.Minute)
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get(header.FailedQ) != "sales-blue" {
			t.Errorf("the error queue has %v", failed)
		}
	})
}

// No policy retries at once in quarantine, or discards a parked message.
func TestQuarantineBoundsEveryPolicy(t *testing.T) {
	for name, action := range map[string]recoverability.Action{"retry": recoverability.Retry{}, "delay": recoverability.Delay{For: time.Second}} {
		for _, deliveries := range []int{0, 3} {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls harness.Tally
				var seen recoverability.Failure
				cfg := harness.Sales(broker, failing(&calls))
				cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
					if f.Quarantined == 0 {
						return recoverability.Discard{}
					}
					seen = f
					return action
				}
				m := wire("m")
				m.Headers = fault.QuarantineHeaders(m.Headers, "sales", 9)
				delivered(t, broker, "sales.quarantine", m, deliveries)
				harness.Start(t, cfg)
				time.Sleep(time.Hour)
				parked := deliveries == 3
				want := 1
				if name == "delay" && !parked {
					want = 0
				}
				if got := len(broker.Messages("error")); got != want {
					t.Errorf("%s after %d deliveries: the error queue has %d messages, want %d", name, deliveries, got, want)
				}
				if seen.Immediate < 6 || seen.Quarantined != 9 || seen.Queue != "sales" {
					t.Errorf("the policy saw %+v", seen)
				}
				var c *recoverability.CrashLoopError
				if errors.As(seen.Err, &c) != parked || parked && len(calls.List()) > 0 {
					t.Errorf("%d calls, error %v", len(calls.List()), seen.Err)
				}
			})
		}
	}
}

func TestWithoutAQuarantineTheGuardIsOffAndSaysSo(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Inspector} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			broker.CreateQueues("sales", "error")
			var calls harness.Tally
			cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
				calls.Add(fmt.Sprint(s.Attempt().N))
				return nil
			}))
			cfg.Install = false
			delivered(t, broker, "sales", wire("m"), 20)
			r := harness.Start(t, cfg)
			synctest.Wait()
			if diff := cmp.Diff([]string{"21"}, calls.List()); diff != "" {
				t.Error(diff)
			}
			h := r.Health()
			if !h.Ready || len(h.Warnings) != 1 || !strings.Contains(h.Warnings[0], "sales.quarantine") {
				t.Errorf("health %+v", h)
			}
			if without != 0 {
				return // it is found with the next start
			}
			broker.CreateQueues("sales.quarantine")
			time.Sleep(6 * time.Second)
			if h := r.Health(); len(h.Warnings) > 0 {
				t.Errorf("health %+v", h)
			}
		})
	}
}

func TestTheQuarantineIsFoundWithoutAnInspectorToo(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Inspector
		var calls harness.Tally
		delivered(t, broker, "sales", wire("m"), 6)
		harness.Start(t, harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			calls.Add(fmt.Sprint(s.Attempt().N))
			return nil
		})))
		time.Sleep(5 * time.Second)
		if diff := cmp.Diff([]string{"1"}, calls.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWhatNeedsNoQuarantineHasNone(t *testing.T) {
	for name, change := range map[string]func(*endpoint.Config){
		"off":  func(c *endpoint.Config) { c.Recoverability.Quarantine.After = recoverability.None },
		"none": func(c *endpoint.Config) { c.Transactions = endpoint.None },
	} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var calls harness.Tally
			cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
				calls.Add(fmt.Sprint(s.Attempt().N))
				return nil
			}))
			change(&cfg)
			delivered(t, broker, "sales", wire("m"), 20)
			harness.Start(t, cfg)
			synctest.Wait()
			if diff := cmp.Diff([]string{"21"}, calls.List()); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			if err := broker.Put("sales.quarantine", wire("m")); !errors.Is(err, transport.ErrNoQueue) {
				t.Errorf("%s: there is a quarantine: %v", name, err)
			}
		})
	}
}

// If the broker does not count deliveries, a redelivered message that did not fail in this
// process is a suspect.
func TestWithoutCountsASuspectDidNotFailHere(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Exact
		var told harness.Tally
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: recoverability.None}
		cfg.Notify = telling(&told)
		delivered(t, broker, "sales", wire("redelivered"), 1)
		r := harness.Start(t, cfg)
		time.Sleep(5 * time.Second)
		want := []string{"quarantined to sales.quarantine", "moved_to_error to error"}
		if diff := cmp.Diff(want, told.List()); diff != "" {
			t.Errorf("of another process (-want +got):\n%s", diff)
		}
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(time.Second)
		want = append(want, "immediate_retry #1", "immediate_retry #2", "moved_to_error to error")
		if diff := cmp.Diff(want, told.List()); diff != "" {
			t.Errorf("of this one (-want +got):\n%s", diff)
		}
	})
}

func TestUndecodableMessagesAreNotQuarantined(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		m := wire("m")
		m.Undecodable = errors.New("no headers")
		var told harness.Tally
		cfg := harness.Sales(broker)
		cfg.Notify = telling(&told)
		delivered(t, broker, "sales", m, 20)
		harness.Start(t, cfg)
		time.Sleep(time.Second)
		if diff := cmp.Diff([]string{"moved_to_error to error"}, told.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// A message that is too large for the quarantine moves to the error queue: handled like any other,
// it may crash the process.
func TestAMessageTooLargeForQuarantineFails(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls, told harness.Tally
		m := wire("m")
		delivered(t, broker, "sales", m, 20)
		broker.MaxHeaders = m.Headers.Size() + 10
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			calls.Add(fmt.Sprint(s.Attempt().N))
			return nil
		}))
		cfg.Notify = telling(&told)
		harness.Start(t, cfg)
		time.Sleep(time.Second)
		want := []string{"fallback_taken original_headers", "moved_to_error to error"}
		if diff := cmp.Diff(want, told.List()); diff != "" || len(calls.List()) != 0 || len(broker.Messages("error")) != 1 {
			t.Errorf("handled %v, in the error queue %d: %s", calls.List(), len(broker.Messages("error")), diff)
		}
	})
}

// A long handler delays the quarantine, and the two do not deadlock.
func TestALongHandlerDelaysQuarantine(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		answered := make(chan struct{})
		var first sync.Once
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			switch o.ID {
			case "question":
				<-answered
			case "answer":
				defer first.Do(func() { close(answered) })
			}
			handled.Add(o.ID)
			return nil
		}))
		cfg.Concurrency = 4
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "question"})
		synctest.Wait()
		delivered(t, broker, "sales.quarantine", wire("suspect"), 0)
		time.Sleep(65 * time.Second) // by now everything rests
		r.MustSend(harness.PlaceOrder{ID: "answer"})
		synctest.Wait()
		if got := handled.List(); len(got) > 0 {
			t.Fatalf("handled %q before the patience for the handler is over", got)
		}
		time.Sleep(2 * time.Minute)
		if diff := cmp.Diff([]string{"answer", "question", "suspect"}, handled.List()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

// While one endpoint handles a message in quarantine, the other endpoints of the process
// wait.
func TestQuarantineStopsOtherEndpointsOfTheProcess(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var running, beside atomic.Int32
		handle := func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			running.Add(1)
			defer running.Add(-1)
			time.Sleep(300 * time.Millisecond)
			if o.ID == "suspect" {
				beside.Add(running.Load() - 1)
			}
			return nil
		}
		one, two := harness.Sales(broker, endpoint.Handle(handle)), harness.Sales(broker, endpoint.Handle(handle))
		two.Name = "billing"
		delivered(t, broker, "sales", wire("suspect"), 6)
		delivered(t, broker, "billing", wire("suspect"), 6)
		for range 500 {
			for _, q := range []string{"sales", "billing"} {
				if err := broker.Put(q, wire("m")); err != nil {
					t.Fatal(err)
				}
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		var es []*endpoint.Endpoint
		for _, cfg := range []endpoint.Config{one, two} {
			e, err := endpoint.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			es = append(es, e)
		}
		if err := endpoint.RunAll(ctx, es...); err != nil {
			t.Error(err)
		}
		if n := beside.Load(); n != 0 {
			t.Errorf("%d were handled beside the suspects", n)
		}
		for _, q := range []string{"sales", "billing", "sales.quarantine", "billing.quarantine", "error"} {
			if left := broker.Messages(q); len(left) > 0 {
				t.Errorf("%d messages in %s", len(left), q)
			}
		}
	})
}

func TestWhatIsInQuarantineComesFirstAfterAStart(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		delivered(t, broker, "sales", wire("m"), 0)
		delivered(t, broker, "sales.quarantine", wire("suspect"), 2)
		harness.Start(t, harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if o.ID == "suspect" && len(broker.Messages("sales")) != 1 {
				t.Error("something was received beside it")
			}
			handled.Add(o.ID)
			return nil
		})))
		time.Sleep(5 * time.Second)
		if diff := cmp.Diff([]string{"suspect", "m"}, handled.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// A suspect whose lease was lost is not reported as quarantined.
func TestALostSuspectIsNotReported(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		delivered(t, broker, "sales", wire("m"), 6)
		broker.Fail = func(verb, _ string) error {
			if verb == "CompleteWith" {
				return transport.ErrLeaseLost
			}
			return nil
		}
		var told harness.Tally
		cfg := harness.Sales(broker)
		cfg.Notify = telling(&told)
		harness.Start(t, cfg)
		time.Sleep(time.Minute)
		if got := told.List(); len(got) > 0 {
			t.Errorf("told %q", got)
		}
	})
}

// Suspects that wait for a move to the quarantine hold no slot.
func TestWaitingSuspectsHoldNoSlot(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		for i := range 4 {
			delivered(t, broker, "sales", wire(fmt.Sprint("suspect-", i)), 6)
		}
		broker.Fail = refusing(errNo, "sales.quarantine")
		var handled harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			handled.Add(o.ID)
			return nil
		}))
		cfg.Concurrency = 4
		cfg.Notify = append(cfg.Notify, func(ctx context.Context, _ recoverability.Notification) { <-ctx.Done() })
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "healthy"})
		time.Sleep(8 * time.Second) // slow start is over
		if got := handled.List(); !slices.Contains(got, "healthy") {
			t.Errorf("handled %q", got)
		}
	})
}

// A handler that ends its goroutine in quarantine holds up no other message.
func TestGoexitInQuarantineHoldsUpNobody(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		delivered(t, broker, "sales.quarantine", wire("suspect"), 0)
		delivered(t, broker, "sales.quarantine", wire("bad"), 0)
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			if o.ID == "bad" {
				runtime.Goexit()
			}
			handled.Add(o.ID)
			return nil
		}))
		cfg.Recoverability = once
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "m"})
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff([]string{"suspect", "m"}, handled.List()); diff != "" {
			t.Error(diff)
		}
		if got := len(broker.Messages("error")); got != 1 {
			t.Errorf("the error queue has %d messages, want 1", got)
		}
	})
}

func TestAParkedMessageThatCannotBeMovedHoldsUpNobody(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.DeadLetterer
		var missing atomic.Bool
		missing.Store(true)
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" && missing.Load() {
				return transport.ErrNoQueue
			}
			return nil
		}
		var handled harness.Tally
		var critical atomic.Int32
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			handled.Add(o.ID)
			return nil
		}))
		cfg.Notify = []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) {
			if n.Kind == recoverability.CriticalError {
				critical.Add(1)
			}
		}}
		delivered(t, broker, "sales.quarantine", wire("parked"), 3)
		r := harness.Start(t, cfg)
		for i := range 60 {
			r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(i)})
			time.Sleep(10 * time.Second)
		}
		if got := handled.List(); len(got) < 59 || slices.Contains(got, "parked") {
			t.Errorf("handled %q", got)
		}
		if n := critical.Load(); n < 10 || n > 120 {
			t.Errorf("told %d times in ten minutes", n)
		}
		missing.Store(false)
		time.Sleep(time.Minute)
		if got := len(broker.Messages("error")); got != 1 {
			t.Errorf("the error queue has %d messages, want 1", got)
		}
	})
}

func TestTheQuarantineCannotBeTheErrorQueue(t *testing.T) {
	for _, change := range []func(*endpoint.Config){
		func(c *endpoint.Config) { c.Recoverability.ErrorQueue = "sales.quarantine" },
		func(c *endpoint.Config) { c.AuditQueue = "sales.quarantine" },
		func(c *endpoint.Config) {
			c.Recoverability.Rules = []recoverability.Rule{{ErrorQueue: "sales.quarantine"}}
		},
	} {
		cfg := harness.Sales(&inmemory.Transport{})
		change(&cfg)
		if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "is the endpoint's quarantine") {
			t.Errorf("New returned %v", err)
		}
	}
}

// Looking at the quarantine is a request that some brokers charge for.
func TestAnEmptyQuarantineIsLookedAtRarely(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var looks atomic.Int64
		broker.Fail = func(verb, queue string) error {
			if verb == "Inspect" && queue == "sales.quarantine" {
				looks.Add(1)
			}
			return nil
		}
		var handled harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			handled.Add(o.ID)
			return nil
		}))
		e := harness.Start(t, cfg)
		const idle = 10 * time.Minute
		time.Sleep(idle)
		if n := looks.Load(); n < 5 || n > 12 {
			t.Errorf("%d looks in %v, want about one a minute", n, idle)
		}
		delivered(t, broker, "sales.quarantine", wire("moved-by-another"), 0)
		time.Sleep(time.Minute + 2*time.Second)
		if diff := cmp.Diff([]string{"moved-by-another"}, handled.List()); diff != "" {
			t.Error(diff)
		}
		e.End() // else the endpoint receives the message, too
		delivered(t, broker, "sales", wire("moved-by-this"), 6)
		harness.Start(t, cfg)
		time.Sleep(4 * time.Second)
		if diff := cmp.Diff([]string{"moved-by-another", "moved-by-this"}, handled.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// A longer time between looks at an empty quarantine costs fewer requests.
func TestAnEmptyQuarantineIsLookedAtAsOftenAsSet(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var looks atomic.Int64
		broker.Fail = func(verb, queue string) error {
			if verb == "Inspect" && queue == "sales.quarantine" {
				looks.Add(1)
			}
			return nil
		}
		cfg := harness.Sales(broker)
		cfg.Recoverability.Quarantine.Idle = 10 * time.Minute
		harness.Start(t, cfg)
		time.Sleep(time.Hour)
		if n := looks.Load(); n < 4 || n > 8 {
			t.Errorf("%d looks in an hour, want about one each 10 minutes", n)
		}
	})
}
