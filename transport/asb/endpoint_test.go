package asb_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

type job struct{ N int }

// stage is a running endpoint.
type stage struct {
	*testing.T
	*endpoint.Endpoint
	stop  context.CancelFunc
	ended chan error
}

func run(t *testing.T, tr *asb.Transport, change func(*endpoint.Config), handle func(context.Context, *endpoint.Session, job) error) *stage {
	t.Helper()
	cfg := endpoint.Config{
		Name: "work", Transport: tr, Install: true, Concurrency: 8, Logger: slog.New(slog.DiscardHandler), Instance: "one",
		Messages: []endpoint.Message{endpoint.Command[job]("Work.Job")},
		Handlers: []endpoint.Handler{endpoint.Handle(handle)},
	}
	if change != nil {
		change(&cfg)
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &stage{T: t, Endpoint: e, stop: stop, ended: make(chan error, 1)}
	go func() { s.ended <- e.Run(ctx) }()
	t.Cleanup(s.end)
	if err := e.WaitReady(within(t)); err != nil {
		t.Fatal(err)
	}
	return s
}

// end stops the endpoint. A second one does nothing.
func (s *stage) end() {
	s.Helper()
	if s.stop == nil {
		return
	}
	s.stop()
	s.stop = nil
	if err := <-s.ended; err != nil {
		s.Error(err)
	}
}

func (s *stage) send(n int) {
	s.Helper()
	if err := s.Send(within(s.T), job{n}, endpoint.To("work"), endpoint.MessageID(fmt.Sprint("m-", n))); err != nil {
		s.Error(err)
	}
}

func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
		panic("unreachable")
	}
}

// A handler that takes five times as long as the lock completes once.
func TestAHandlerLongerThanTheLockCompletesOnce(t *testing.T) {
	t.Parallel()
	brokertest.Longer(t, time.Second, func(lock time.Duration) error {
		ns := brokertest.OwnServiceBus(t)
		tr := on(ns)
		tr.LockDuration = ns.ShortLock(lock)
		handled := make(chan int, 10)
		s := run(t, tr, nil, func(ctx context.Context, session *endpoint.Session, m job) error {
			select {
			case <-time.After(5 * tr.LockDuration):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			handled <- m.N
			return nil
		})
		s.send(1)
		await(t, "the handler ends", handled)
		s.end()
		if q := ns.Control.State().Queues["work"]; len(handled) > 0 || q.Active != 0 || q.DeadLetters != 0 {
			return fmt.Errorf("handled %d times more, and %+v is left", len(handled), q)
		}
		return nil
	})
}

// Without the right to manage the namespace an endpoint does not know the lock duration of a queue.
func TestLocksThatAreShorterThanReckonedAreRenewed(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	maker := on(ns)
	maker.LockDuration = 5 * time.Second // the service's minimum
	install(t, open(t, maker), "work", "error", "work.quarantine")
	tr := on(ns)
	tr.ConnectionString = ns.Control.Restricted("Send", "Listen")
	handled := make(chan int, 10)
	s := run(t, tr, nil, func(_ context.Context, _ *endpoint.Session, m job) error {
		<-time.After(2 * maker.LockDuration)
		handled <- m.N
		return nil
	})
	s.send(1)
	await(t, "the handler ends", handled)
	s.end()
	if q := ns.Control.State().Queues["work"]; len(handled) > 0 || q.Active != 0 || q.DeadLetters != 0 {
		t.Errorf("handled %d times more, and %+v is left", len(handled), q)
	}
}

func TestAHandlerIsCancelledWhenItsLockIsLost(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.LockDuration = ns.ShortLock(time.Second)
	causes, began, again := make(chan error, 10), make(chan bool, 10), make(chan bool, 10)
	var first sync.Once
	s := run(t, tr, nil, func(ctx context.Context, _ *endpoint.Session, _ job) error {
		lost := false
		first.Do(func() {
			lost = true
			began <- true
			<-ctx.Done()
			causes <- context.Cause(ctx)
		})
		if !lost {
			again <- true
		}
		return context.Cause(ctx)
	})
	s.send(1)
	await(t, "the handler begins", began)
	ns.Control.LoseLocks("work")
	if cause := await(t, "the handler is cancelled", causes); !errors.Is(cause, transport.ErrLeaseLost) {
		t.Errorf("the cause is %v", cause)
	}
	await(t, "the message is handled again", again)
	s.end()
	if q := ns.Control.State().Queues["work"]; len(again) > 0 || q.Active != 0 {
		t.Errorf("handled %d times more, and %+v is left", len(again), q)
	}
}

// A message that the broker dead-letters is moved to the error queue, with the reason.
func TestDeadLettersComeToTheErrorQueue(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	c := open(t, tr)
	must(t, c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: "work"}, {Name: "error", Shared: true}}}))
	dispatch(t, c, to("work", "given-up"))
	d := next(t, receive(t, c, "work"))
	must(t, d.(transport.DeadLetterer).DeadLetter(within(t), "it is of no use"))
	run(t, tr, nil, func(context.Context, *endpoint.Session, job) error { return nil })
	failed := next(t, receive(t, c, "error"))
	m := failed.Message()
	if m.ID != "given-up" || m.Headers.Get(header.FailedQ) != "work" || m.Headers.Get(header.HoldfastFaultClass) != "dead-lettered" ||
		m.Headers.Get(header.ExceptionMessage) != `dead-lettered by the broker in queue "work": it is of no use (by instance instance-1), 1 time(s)` {
		t.Errorf("%s: %v", m.ID, m.Headers)
	}
	must(t, failed.Complete(within(t)))
	if q := ns.Control.State().Queues["work/$deadletterqueue"]; q.Active != 0 {
		t.Errorf("%+v is left", q)
	}
}

// Lost connections, ended links and throttling lose no message and complete none twice: a message
// that is handled again has been delivered again.
func TestChaosFaultsUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.LockDuration = ns.ShortLock(2 * time.Second)
	n := 200 // with each fault once
	if brokertest.Fault(t) {
		n = 600
	}
	var mu sync.Mutex
	times := map[int]int{}
	done := make(chan int, 100*n)
	s := run(t, tr, func(cfg *endpoint.Config) {
		cfg.Concurrency = 32
		cfg.Recoverability = recoverability.Config{Immediate: 10, Delayed: recoverability.None}
	}, func(ctx context.Context, session *endpoint.Session, m job) error {
		mu.Lock()
		times[m.N]++
		mu.Unlock()
		done <- m.N
		return nil
	})
	faults := []func(){
		func() { ns.Control.Drop() },
		func() { ns.Control.Detach("work", "") },
		func() { ns.Control.Set(brokertest.ServiceBusFaults{Throttle: 20}) },
		func() { ns.Control.Set(brokertest.ServiceBusFaults{Unanswered: 3}) },
	}
	for i := range n {
		if i%50 == 25 {
			faults[i/50%len(faults)]()
		}
		sendSurely(s, i)
	}
	ns.Control.Set(brokertest.ServiceBusFaults{})
	got := map[int]bool{}
	for len(got) < n {
		got[await(t, fmt.Sprintf("all are handled, after %d", len(got)), done)] = true
	}
	// A message whose completion was lost is delivered again when its lock has expired.
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for ctx := within(t); ctx.Err() == nil && ns.Control.State().Queues["work"].Active > 0; {
		<-look.C
	}
	s.end()
	if q := ns.Control.State().Queues["work"]; q.Active != 0 || q.DeadLetters != 0 {
		t.Errorf("%+v is left", q)
	}
	twice := 0
	for _, count := range times {
		if count > 1 {
			twice++
		}
	}
	t.Logf("%d of %d were handled more than once", twice, n)
	if twice > n/4 {
		t.Errorf("%d of %d were handled more than once", twice, n)
	}
}

// sendSurely sends until the message is certainly in the queue.
func sendSurely(s *stage, n int) {
	s.Helper()
	for ctx := within(s.T); ; {
		err := s.Send(ctx, job{n}, endpoint.To("work"), endpoint.MessageID(fmt.Sprint("m-", n)))
		switch {
		case err == nil:
			return
		case ctx.Err() != nil:
			s.Fatalf("message %d is not sent within %v: %v", n, patience, err)
		case !errors.Is(err, transport.ErrOutcomeUnknown):
			s.Logf("sent again: %v", err)
		}
	}
}

// lines collects log records without level and time.
type lines struct {
	mu  sync.Mutex // guards the fields below
	all []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, strings.TrimSpace(string(p)))
	return len(p), nil
}

func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

// A pause of the length that the service suggests follows each refusal: links are not attached
// again several times a second.
func TestAThrottleOfFiveSecondsIsLoggedInAFewLines(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure) // elsewhere locks end with their links, which is logged
	const messages = 1000
	handled := make(chan int, 2*messages)
	log := &lines{}
	change := func(cfg *endpoint.Config) {
		cfg.Concurrency, cfg.Logger = 2, slog.New(slog.NewTextHandler(log, nil))
	}
	c := open(t, on(ns))
	install(t, c, "work", "error", "work.quarantine")
	var ops []transport.Operation
	for i := range messages {
		op := to("work", fmt.Sprint("m-", i))
		op.Message.Body = []byte(fmt.Sprintf(`{"N":%d}`, i))
		op.Message.Headers.Set(header.EnclosedMessageTypes, "Work.Job")
		ops = append(ops, op)
	}
	dispatch(t, c, ops...)
	run(t, on(ns), change, func(_ context.Context, _ *endpoint.Session, m job) error {
		<-time.After(20 * time.Millisecond) // its work
		handled <- m.N
		return nil
	})
	await(t, "a message is handled", handled)
	log.take()
	refusals := time.NewTicker(200 * time.Millisecond)
	defer refusals.Stop()
	// The throttle refuses some requests, and others not. The first refusal may be of a request
	// that settles a message, which is not logged: the throttle lasts until a receive has been
	// refused.
	var logged []string
	failed, began := 0, time.Now()
	for failed == 0 || time.Since(began) < 5*time.Second {
		<-refusals.C
		if time.Since(began) > patience {
			t.Fatal("no receive was refused")
		}
		ns.Control.Set(brokertest.ServiceBusFaults{Links: brokertest.ServiceBusRefusal{Status: 503, Address: "work", Times: 1}})
		ns.Control.Detach("work", "")
		logged = append(logged, log.take()...)
		failed = strings.Count(strings.Join(logged, "\n"), "throttled")
	}
	took := time.Since(began)
	ns.Control.Set(brokertest.ServiceBusFaults{})
	// A pause is 2 s at least. Each refusal is logged once, and so is the next successful receive.
	if most := 2 * (1 + int(took/(2*time.Second))); len(logged) > most {
		t.Errorf("%d lines in %s, want %d at most:\n%s", len(logged), took, most, strings.Join(logged, "\n"))
	}
	dispatch(t, c, ops[0])
	for len(handled) > 0 {
		<-handled
	}
	await(t, "a message is handled after the throttle", handled)
}
