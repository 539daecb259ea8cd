package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// Retries by a policy on brokers with leases and durable delays: what the bubble tests of package
// endpoint show in memory.

// retrySuite is an endpoint whose handler does what each test says.
type retrySuite struct {
	t      *testing.T
	store  killStore
	atomic bool
	cfg    endpoint.Config
	*running
	attempts chan attempted
	actions  chan string // kinds of notifications
}

// attempted is one call of the handler.
type attempted struct {
	ID       string
	Delivery int
	N, Most  int
	Headers  header.Map
}

// onStores runs f with databases and brokers, in atomic mode where they have it.
func onStores(t *testing.T, first, others []string, f func(s *retrySuite)) {
	t.Helper()
	onBrokers(t, first, others, func(t *testing.T, store string) { f(newRetrySuite(t, store)) })
}

func newRetrySuite(t *testing.T, store string) *retrySuite {
	t.Helper()
	kills, err := openStore(store, placeOf(t, store), time.Minute)
	must(t, err)
	t.Cleanup(func() { _ = kills.Close() })
	must(t, kills.exec(t.Context(), `CREATE TABLE done (n int)`))
	return &retrySuite{t: t, store: kills, atomic: store != "quorum"}
}

func placeOf(t *testing.T, store string) string {
	t.Helper()
	switch store {
	case "postgres":
		return brokertest.Postgres(t)
	case "quorum":
		return brokertest.RabbitMQ(t)
	}
	return filepath.Join(t.TempDir(), "retry.db")
}

// start starts the endpoint with a handler that writes a row and then returns what do returns.
func (s *retrySuite) start(c recoverability.Config, do func(ctx context.Context, m work, a attempted) error) {
	s.t.Helper()
	s.attempts, s.actions = make(chan attempted, 1000), make(chan string, 1000)
	s.cfg = killConfig(s.store, false)
	s.cfg.Recoverability = c
	if s.atomic {
		s.cfg.Transactions = endpoint.SendsAtomicWithReceive
	}
	s.cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, session *endpoint.Session, m work) error {
		if s.atomic {
			if err := s.store.write(ctx, session, m.N); err != nil {
				return err
			}
		}
		a := attempted{ID: session.MessageID(), Delivery: session.Attempt().N, Headers: session.Headers()}
		a.N, a.Most = resilience.Attempt(ctx)
		err := do(ctx, m, a)
		s.attempts <- a
		return err
	})}
	s.cfg.Notify = []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) { s.actions <- string(n.Kind) }}
	s.running = start(s.t, s.cfg)
}

// want receives the attempts of a message, and returns the last.
func (s *retrySuite) want(attempts ...string) (last attempted) {
	s.t.Helper()
	var got []string
	for range attempts {
		last = within(s.t, s.attempts, "an attempt")
		got = append(got, fmt.Sprintf("%d of %d in delivery %d", last.N, last.Most, last.Delivery))
	}
	if diff := cmp.Diff(attempts, got); diff != "" {
		s.t.Fatal(diff)
	}
	return last
}

// within receives from ch.
func within[T any](t *testing.T, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(timeLimit):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

// failed receives a message from the error queue.
func (s *retrySuite) failed() header.Map {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), timeLimit)
	defer cancel()
	conn, err := s.store.transport().Open(ctx, transport.Env{})
	must(s.t, err)
	defer conn.Close()
	r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "error"})
	must(s.t, err)
	defer r.Close()
	r.Window(1)
	for {
		ds, err := r.Receive(ctx, 1)
		must(s.t, err)
		if len(ds) > 0 {
			must(s.t, ds[0].Complete(ctx))
			return ds[0].Message().Headers
		}
	}
}

// written checks the rows that were committed.
func (s *retrySuite) written(want ...int) {
	s.t.Helper()
	if !s.atomic {
		return
	}
	s.end()
	rows, err := s.store.rows(s.t.Context())
	must(s.t, err)
	if !slices.Equal(want, rows) {
		s.t.Errorf("rows are %v, want %v", rows, want)
	}
}

func policyOf(use func(resilience.Policy) resilience.Use, p resilience.Policy) recoverability.Config {
	return recoverability.Config{Rules: []recoverability.Rule{{Types: []string{"Kill.Work"}, Retry: use(p)}}}
}

// soon has two retries, after 1 s and after 2 s: longer than a lease.
var soon = resilience.Policy{Name: "soon", Retry: resilience.Retry{Max: 2, Delay: time.Second, Backoff: resilience.Linear}}

// The copies of a message and its last move belong to a transaction, or are confirmed before the
// message is acknowledged.
func TestDeferredRetriesRunOut(t *testing.T) {
	onStores(t, []string{"postgres", "quorum"}, []string{"sqlite"}, func(s *retrySuite) {
		s.start(policyOf(resilience.Deferred, soon), func(context.Context, work, attempted) error { return errNo })
		s.send(work{1}, endpoint.MessageID("m-1"))
		last := s.want("1 of 3 in delivery 1", "2 of 3 in delivery 1", "3 of 3 in delivery 1")
		for name, want := range map[string]string{
			header.HoldfastRetryPolicy: "soon", header.HoldfastRetryAttempt: "3", header.Retries: "2", header.MessageID: "m-1",
			header.HoldfastRetryLastError: "handler acceptance_test.(*retrySuite).start.func1: the bank says no",
		} {
			if got := last.Headers.Get(name); got != want {
				s.t.Errorf("the last attempt has %s %q, want %q", name, got, want)
			}
		}
		due, err := header.ParseTime(last.Headers.Get(header.DeliverAt))
		must(s.t, err)
		at, err := header.ParseTime(last.Headers.Get(header.RetriesTimestamp))
		must(s.t, err)
		if got := due.Sub(at); got != soon.DelayFor(2, nil) {
			s.t.Errorf("the second delay was %v, want %v", got, soon.DelayFor(2, nil))
		}
		h := s.failed()
		if policy, retries := h.Get(header.HoldfastFaultPolicy), h.Get(header.Retries); policy != "soon" || retries != "" {
			s.t.Errorf("in the error queue: policy %q, retries %q", policy, retries)
		}
		s.written()
	})
}

// A message that waits for its retry waits at the broker.
func TestDeferredRetryOutlivesStop(t *testing.T) {
	onStores(t, []string{"quorum"}, []string{"sqlite", "postgres"}, func(s *retrySuite) {
		c := policyOf(resilience.Deferred, soon)
		s.start(c, func(context.Context, work, attempted) error { return errNo })
		s.send(work{1}, endpoint.MessageID("m-1"))
		s.want("1 of 3 in delivery 1")
		within(s.t, s.actions, "the decision")
		s.end()
		s.start(c, func(_ context.Context, _ work, a attempted) error {
			if a.N < 3 {
				return errNo
			}
			return nil
		})
		if last := s.want("2 of 3 in delivery 1", "3 of 3 in delivery 1"); last.ID != "m-1" {
			s.t.Errorf("the id is %q", last.ID)
		}
		s.written(1)
	})
}

// An error that no retry helps moves the message at once.
func TestNonRetryableOnBrokers(t *testing.T) {
	onStores(t, []string{"sqlite"}, []string{"postgres", "quorum"}, func(s *retrySuite) {
		s.start(policyOf(resilience.Deferred, soon), func(context.Context, work, attempted) error { return resilience.NonRetryable(errNo) })
		s.send(work{1})
		s.want("1 of 3 in delivery 1")
		if kind := within(s.t, s.actions, "the decision"); kind != string(recoverability.MovedToError) {
			s.t.Errorf("the decision is %s", kind)
		}
		s.written()
	})
}

// A time-out ends a statement or a call of the handler. It is a failed attempt, and no outage of
// the database.
func TestAttemptTimeoutOnBrokers(t *testing.T) {
	uses := map[string]func(resilience.Policy) resilience.Use{"inline": resilience.Inline, "deferred": resilience.Deferred}
	others := []string{"sqlite inline", "sqlite deferred", "postgres deferred", "quorum inline"}
	onBrokers(t, []string{"postgres inline", "quorum deferred"}, others, func(t *testing.T, on string) {
		store, use, _ := strings.Cut(on, " ")
		s := newRetrySuite(t, store)
		timed := resilience.Policy{ // a busy machine may use up the time before the handler begins, or while it commits
			Name: "timed", Timeout: 500 * time.Millisecond, Retry: resilience.Retry{Max: 10, Delay: time.Second},
		}
		s.start(policyOf(uses[use], timed), func(ctx context.Context, _ work, a attempted) error {
			if a.N >= 3 {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		s.send(work{1})
		var seen []int
		for len(seen) == 0 || seen[len(seen)-1] < 3 {
			seen = append(seen, within(s.t, s.attempts, "an attempt").N)
		}
		if !slices.IsSorted(seen) {
			s.t.Errorf("the attempts are %v", seen)
		}
		s.written(1)
	})
}

// More messages wait for their deferred retries than are handled at once.
func TestDeferredRetryFreesSlot(t *testing.T) {
	onStores(t, []string{"sqlite"}, []string{"postgres", "quorum"}, func(s *retrySuite) {
		hourly := resilience.Policy{Name: "hourly", Retry: resilience.Retry{Delay: time.Hour}}
		c := policyOf(resilience.Deferred, hourly)
		s.start(c, func(_ context.Context, m work, _ attempted) error {
			if m.N < 20 {
				return errNo
			}
			return nil
		})
		for n := range 21 {
			s.send(work{n})
		}
		for range 21 { // more than are handled at once
			if a := within(s.t, s.attempts, "an attempt"); a.N != 1 {
				s.t.Errorf("attempt %d, want the first", a.N)
			}
		}
		s.written(20)
	})
}

// The header of a message names its policy, and stays in each copy.
func TestMessageNamesPolicy(t *testing.T) {
	onStores(t, []string{"sqlite"}, []string{"postgres", "quorum"}, func(s *retrySuite) {
		s.start(recoverability.Config{Policies: resilience.MustCatalog(soon)}, func(_ context.Context, _ work, a attempted) error {
			if a.N < 3 {
				return errNo
			}
			return nil
		})
		s.send(work{1}, endpoint.Header(header.HoldfastPolicy, "soon"))
		s.want("1 of 3 in delivery 1", "2 of 3 in delivery 1", "3 of 3 in delivery 1")
		s.written(1)
	})
}

// The delays are longer than a lease, which is renewed while the message waits; each attempt has
// its own transaction.
func TestInlineRetriesAreOneDelivery(t *testing.T) {
	onStores(t, []string{"postgres"}, []string{"sqlite", "quorum"}, func(s *retrySuite) {
		s.start(policyOf(resilience.Inline, soon), func(_ context.Context, m work, a attempted) error {
			if m.N == 1 && a.N == 3 {
				return nil
			}
			return errNo
		})
		s.send(work{1})
		s.want("1 of 3 in delivery 1", "2 of 3 in delivery 1", "3 of 3 in delivery 1")
		s.send(work{2})
		s.want("1 of 3 in delivery 1", "2 of 3 in delivery 1", "3 of 3 in delivery 1")
		if h := s.failed(); h.Get(header.HoldfastFaultInline) != "2" || h.Get(header.HoldfastAttempts) != "1" {
			s.t.Errorf("in the error queue: %q inline retries, %q deliveries", h.Get(header.HoldfastFaultInline), h.Get(header.HoldfastAttempts))
		}
		s.written(1)
	})
}

// A stop while a message waits releases it: it is handled by the next process, from its first
// attempt.
func TestStopDuringInlineRetry(t *testing.T) {
	onStores(t, []string{"quorum"}, []string{"sqlite", "postgres"}, func(s *retrySuite) {
		slow := resilience.Policy{Name: "slow", Retry: resilience.Retry{Delay: 4 * time.Minute}}
		c := policyOf(resilience.Inline, slow)
		s.start(c, func(context.Context, work, attempted) error { return errors.New("not here") })
		s.send(work{1})
		s.want("1 of 4 in delivery 1")
		within(s.t, s.actions, "the decision")
		s.end()
		s.start(c, func(context.Context, work, attempted) error { return nil })
		if a := within(s.t, s.attempts, "an attempt"); a.N != 1 {
			s.t.Errorf("attempt %d, want the first", a.N)
		}
		s.written(1)
	})
}

// A statement that the time-out ends breaks the transaction, and perhaps its connection. With an
// inbox, that must not be taken for an outage of its database, which uses up no retry.
func TestAttemptTimeoutEndsStatement(t *testing.T) {
	t.Parallel()
	url := brokertest.Postgres(t)
	timed := resilience.Policy{Name: "timed", Timeout: 2 * time.Second, Retry: resilience.Retry{Max: 1, Delay: resilience.None}}
	cfg := killConfig(&postgresKills{url: url, lease: time.Minute}, false)
	cfg.Transactions, cfg.Remember = endpoint.SendsAtomicWithReceive, 24*time.Hour
	cfg.Recoverability = policyOf(resilience.Inline, timed)
	calls, failed := make(chan struct{}, 100), make(chan recoverability.Failure, 100)
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ work) error {
		calls <- struct{}{}
		tx, err := postgres.Tx(ctx, s)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `SELECT pg_sleep(60)`)
		return err
	})}
	cfg.OnFinalFailure = func(_ context.Context, _ *endpoint.Session, f recoverability.Failure) error {
		failed <- f
		return nil
	}
	start(t, cfg).send(work{1})
	f := within(t, failed, "the end of the retries")
	if !errors.Is(f.Err, resilience.ErrAttemptTimeout) || recoverability.Class(f.Err) != recoverability.ClassTimeout {
		t.Errorf("the error is %v", f.Err)
	}
	if n := len(calls); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
}
