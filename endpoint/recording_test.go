package endpoint_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var update = flag.Bool("update", false, "write the recording of TestRecording")

const recordingFile = "testdata/recording.txt"

// A variant is a broker and a mode of an endpoint.
type variant struct {
	name string
	set  func(s *scene)
}

var variants = []variant{
	{"receive only", func(*scene) {}},
	{"none", func(s *scene) { s.cfg.Transactions = endpoint.None }},
	{"atomic", func(s *scene) { s.cfg.Transactions = endpoint.SendsAtomicWithReceive }},
	{"outbox", func(s *scene) { s.cfg.Outbox = &s.db }},
	{"without a quarantine", func(s *scene) { s.cfg.Recoverability.Quarantine.After = recoverability.None }},
	{"release counts", func(s *scene) { s.broker.Without |= inmemory.FreeRelease }},
	{"without delays", func(s *scene) { s.broker.Without |= inmemory.Delay }},
	{"inexact counts", func(s *scene) { s.broker.Without |= inmemory.Exact }},
	{"two steps", func(s *scene) { s.broker.Without |= inmemory.Completer | inmemory.Transactor }},
}

// A story is what happens to one message.
type story struct {
	name   string
	set    func(s *scene) // nil is a handler that returns s.err
	during func(s *scene) // between the send of the message and the stop of the endpoint; nil waits an hour
	// loose has the lines sorted and without numbers: jitter and two goroutines decide on them.
	loose bool
	not   string // a variant in which two goroutines decide on the outcome
}

// A scene is an endpoint, and what is seen of its message.
type scene struct {
	t          *testing.T
	broker, db inmemory.Transport
	cfg        endpoint.Config
	running    *harness.Running
	handle     func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error
	calls      atomic.Int32
	fail       func(verb, object string) error

	mu    sync.Mutex // guards lines
	lines []string
}

var errStory = errors.New("no stock")

func failingFirst(n int32, err error) func(s *scene) {
	return func(s *scene) {
		s.handle = func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			if s.calls.Load() <= n {
				return err
			}
			return nil
		}
	}
}

func failingAlways(err error) func(s *scene) { return failingFirst(1<<30, err) }

// then makes the steps of a story one after the other.
func then(steps ...func(s *scene)) func(s *scene) {
	return func(s *scene) {
		for _, step := range steps {
			step(s)
		}
	}
}

func decide(a recoverability.Action) func(s *scene) {
	return func(s *scene) {
		s.cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action { return a }
	}
}

// refused makes each call of a verb with an object fail the first n times.
func refused(verb, object string, n int32, err error) func(s *scene) {
	return func(s *scene) {
		var calls atomic.Int32
		before := s.fail
		s.fail = func(v, o string) error {
			if v == verb && (object == "" || o == object) && calls.Add(1) <= n {
				return err
			}
			if before != nil {
				return before(v, o)
			}
			return nil
		}
	}
}

func leased(s *scene) { s.broker.Lease, s.db.Lease = 30*time.Second, 30*time.Second }

// loseAfter takes the lease of the message away some time after its send.
func loseAfter(d time.Duration) func(s *scene) {
	return then(leased, func(s *scene) {
		lost := time.Now().Add(d)
		before := s.fail
		s.fail = func(verb, object string) error {
			if verb == "Renew" && time.Now().After(lost) {
				return transport.ErrUnreachable
			}
			if before != nil {
				return before(verb, object)
			}
			return nil
		}
	})
}

func stopAfter(d time.Duration) func(s *scene) {
	return func(*scene) { pass(d) }
}

const forever = int32(1 << 30)

var stories = []story{
	{name: "handled", set: failingFirst(0, nil)},
	{name: "handled, and sends", set: func(s *scene) {
		s.handle = func(ctx context.Context, session *endpoint.Session, m harness.PlaceOrder) error {
			return session.Send(ctx, harness.ShipOrder(m))
		}
	}},
	{name: "fails twice", set: failingFirst(2, errStory)},
	{name: "fails always", set: failingAlways(errStory)},
	{name: "fails unrecoverably", set: failingAlways(recoverability.Unrecoverable(errStory))},
	{name: "panics", set: func(s *scene) {
		s.handle = func(context.Context, *endpoint.Session, harness.PlaceOrder) error { panic("no stock") }
	}},
	{name: "ends its goroutine", set: func(s *scene) {
		s.handle = func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			runtime.Goexit()
			return nil
		}
	}},
	{name: "is discarded", set: then(failingAlways(errStory), decide(recoverability.Discard{Reason: "old"}))},
	{name: "is dead-lettered", set: then(failingAlways(errStory), decide(recoverability.DeadLetter{Reason: "old"}))},
	{name: "is delayed twice", set: then(failingFirst(2, errStory), decide(recoverability.Delay{For: time.Minute}))},
	{name: "is retried inline", set: then(failingFirst(2, errStory), decide(recoverability.RetryInline{For: time.Second}))},
	{
		name: "is retried inline, and the endpoint stops", during: stopAfter(5 * time.Second),
		set: then(failingAlways(errStory), decide(recoverability.RetryInline{For: 20 * time.Second})),
	},
	{
		name: "is retried inline, and loses its lease", loose: true,
		set: then(loseAfter(5*time.Second), failingFirst(1, errStory), decide(recoverability.RetryInline{For: 50 * time.Second})),
	},
	{name: "conflicts twice", set: failingFirst(2, transport.ErrConflict)},
	{name: "conflicts always", set: failingFirst(11, transport.ErrConflict)},
	{name: "has an inline policy", set: then(failingFirst(2, errStory), func(s *scene) {
		s.cfg.Recoverability.Rules = []recoverability.Rule{{
			Retry: resilience.Inline(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 3, Delay: time.Second}}),
		}}
	})},
	{name: "is rate-limited", set: then(failingFirst(4, errStory), func(s *scene) {
		s.cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 1, Delay: 2 * time.Minute}
	})},
	{name: "is rate-limited, and the endpoint stops", during: stopAfter(30 * time.Second), set: then(failingAlways(errStory), func(s *scene) {
		s.cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 1, Delay: 2 * time.Minute}
	})},
	{name: "takes longer than the stop", during: stopAfter(time.Second), set: func(s *scene) {
		s.cfg.StopTimeout = time.Second
		s.handle = func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
	}},
	{name: "exceeds its time", set: func(s *scene) {
		s.cfg.HandlerTimeout = time.Second
		s.handle = func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
	}},
	{name: "loses its lease in the handler", loose: true, not: "inexact counts", set: then(loseAfter(5*time.Second), func(s *scene) {
		s.handle = func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			if s.calls.Load() > 1 {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
	})},
	{name: "cannot be completed once", set: then(failingFirst(0, nil), refused("Complete", "sales", 1, transport.ErrUnreachable),
		refused("CompleteWith", "sales", 1, transport.ErrUnreachable))},
	{name: "cannot be completed", set: then(failingFirst(0, nil), refused("Complete", "sales", 50, transport.ErrOutcomeUnknown),
		refused("CompleteWith", "sales", 50, transport.ErrOutcomeUnknown))},
	{name: "sends to a missing queue", set: then(refused("Dispatch", "shipping", forever, transport.ErrNoQueue), func(s *scene) {
		s.handle = func(ctx context.Context, session *endpoint.Session, m harness.PlaceOrder) error {
			return session.Send(ctx, harness.ShipOrder(m))
		}
	})},
	{name: "sends to a busy queue", set: then(
		refused("Dispatch", "shipping", 5, &transport.BusyError{Queue: "shipping", Reason: "locked"}), func(s *scene) {
			s.handle = func(ctx context.Context, session *endpoint.Session, m harness.PlaceOrder) error {
				return session.Send(ctx, harness.ShipOrder(m))
			}
		})},
	{name: "fails, and the error queue is missing", set: then(failingAlways(recoverability.Unrecoverable(errStory)),
		refused("Dispatch", "error", 3, transport.ErrNoQueue))},
	{name: "fails, and the error queue is full", set: then(failingAlways(recoverability.Unrecoverable(errStory)),
		refused("Dispatch", "error", 3, transport.ErrFull))},
	{name: "fails, and the broker is away", set: then(failingAlways(recoverability.Unrecoverable(errStory)),
		refused("Dispatch", "error", 3, transport.ErrUnreachable))},
	{name: "fails, and its delayed copy is refused", set: then(failingAlways(errStory), decide(recoverability.Delay{For: time.Minute}),
		refused("Dispatch", "sales", 1, transport.ErrTooLarge))},
	{name: "the database of the outbox is away", loose: true, set: then(failingFirst(0, nil), refused("Store", "", 5, transport.ErrUnreachable))},
	{
		name: "the database of the outbox is away, and the endpoint stops", loose: true, during: stopAfter(10 * time.Second),
		set: then(failingFirst(0, nil), refused("Store", "", forever, transport.ErrUnreachable)),
	},
	{name: "was delivered often", set: failingFirst(0, nil), during: func(s *scene) {
		s.deliver(10)
		pass(time.Hour)
	}},
	{name: "crashes in quarantine", set: failingFirst(0, nil), during: func(s *scene) {
		s.deliver(40)
		pass(time.Hour)
	}},
	{name: "comes twice", set: failingFirst(0, nil), during: func(s *scene) {
		pass(time.Minute)
		s.put("1")
		pass(time.Hour)
	}},
	{name: "cannot be read", set: failingFirst(0, nil), during: func(s *scene) {
		pass(time.Minute)
		m := native("Shop.PlaceOrder", "application/json", "{")
		m.ID = "2"
		if err := s.broker.Put("sales", m); err != nil {
			s.t.Error(err)
		}
		pass(time.Hour)
	}},
	{name: "waits for its key, and the endpoint stops", loose: true, during: stopAfter(5 * time.Second), set: func(s *scene) {
		hold := func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		s.cfg.StopTimeout = time.Second
		s.cfg.Handlers = []endpoint.Handler{endpoint.HandleInOrderBy(func(harness.PlaceOrder) string { return "k" }, hold)}
		s.put("0")
	}},
}

// put puts a message into the queue of the endpoint, as another program does.
func (s *scene) put(id string) {
	m := native("Shop.PlaceOrder", "application/json", `{"ID":"`+id+`"}`)
	m.ID = id
	m.Headers.Set(header.MessageID, id)
	s.broker.CreateQueues("sales")
	if err := s.broker.Put("sales", m); err != nil {
		s.t.Error(err)
	}
}

// deliver has another process receive message 2 n times and crash each time, while the endpoint is
// paused.
func (s *scene) deliver(n int) {
	ctx := s.t.Context()
	pass(time.Second)
	if err := s.running.Pause(ctx, "sales"); err != nil {
		s.t.Error(err)
	}
	pass(time.Second)
	s.put("2")
	for range n {
		conn, err := s.broker.Open(ctx, transport.Env{})
		if err != nil {
			s.t.Fatal(err)
		}
		r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "sales"})
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := r.Receive(ctx, 1); err != nil {
			s.t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := s.running.Resume(ctx, "sales"); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// seen are the verbs that settle, send and store.
var seen = regexp.MustCompile(`^(Complete|CompleteWith|Dispatch|Retry|Release|Postpone|DeadLetter|Store|Commit|Rollback)$`)

// play runs a story and returns what was seen.
func (st story) play(t *testing.T, v variant) []string {
	s := &scene{t: t}
	s.broker.CreateQueues("sales", "error", "shipping", "sales.quarantine")
	deadLetters(&s.broker)
	s.cfg = harness.Sales(&s.broker, endpoint.Handle(func(ctx context.Context, session *endpoint.Session, m harness.PlaceOrder) error {
		n := s.calls.Add(1)
		s.add("handle %s, call %d", m.ID, n)
		return s.handle(ctx, session, m)
	}))
	s.cfg.Concurrency = 2
	s.cfg.Recoverability.Immediate, s.cfg.Recoverability.Delayed = 1, 1
	s.cfg.Logger = slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s.cfg.Notify = append(s.cfg.Notify, func(_ context.Context, n recoverability.Notification) {
		s.add("notify %s, retry %d, to %q, fallback %q", n.Kind, n.Retry, n.To, n.Fallback)
	})
	v.set(s)
	st.set(s)
	watch := func(verb, object string) error {
		var err error
		if s.fail != nil {
			err = s.fail(verb, object)
		}
		if v.name == "outbox" && verb == "Dispatch" && object == "shipping" {
			time.Sleep(time.Nanosecond) // after the completion, which another goroutine makes at the same time
		}
		if seen.MatchString(verb) && !strings.HasPrefix(object, "sales.outbox") {
			s.add("%s %s%s", verb, object, map[bool]string{true: " fails"}[err != nil])
		}
		return err
	}
	s.broker.Fail, s.db.Fail = watch, watch
	e, err := endpoint.New(s.cfg)
	if err != nil {
		return []string{"New fails"}
	}
	s.running = harness.Run(t, e)
	s.put("1")
	if st.during != nil {
		st.during(s)
	} else {
		pass(time.Hour)
	}
	s.running.End()
	for _, queue := range []string{"sales", "error", "shipping", "sales.quarantine", "sales.dead-letters", "sales.dead"} {
		for _, m := range s.broker.Messages(queue) {
			s.lines = append(s.lines, fmt.Sprintf("in %s: %s, retries %q, error %.80q", queue, m.ID,
				m.Headers.Get(header.Retries), m.Headers.Get(header.ExceptionMessage)))
		}
	}
	for i, line := range s.lines {
		for _, differs := range []*regexp.Regexp{stacks, uuids, stamps, spans} {
			line = differs.ReplaceAllString(line, "…")
		}
		s.lines[i] = line
	}
	if st.loose {
		slices.Sort(s.lines)
		return slices.Compact(s.lines)
	}
	// The log and the notifications come from other goroutines than the calls of the driver.
	slices.SortStableFunc(s.lines, func(a, b string) int { return cmp.Compare(kindOf(a), kindOf(b)) })
	return collapsed(s.lines)
}

// kindOf returns the order of a line among those of other kinds.
func kindOf(line string) int {
	return 1 + slices.IndexFunc([]string{"log ", "notify ", "in "}, func(kind string) bool { return strings.HasPrefix(line, kind) })
}

var (
	uuids  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
	spans  = regexp.MustCompile(`\b\d+(\.\d+)?(ms|µs|s|m\d+s|h\d+m\d+s)\b`)
	stacks = regexp.MustCompile(` stack=".*"`)
	stamps = regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}[0-9.]*Z`)
)

// Write adds a line of the log.
func (s *scene) Write(line []byte) (int, error) {
	_, text, _ := strings.Cut(string(bytes.TrimSpace(line)), " ") // behind the time
	s.add("log %s", text)
	return len(line), nil
}

// collapsed returns lines without times and with one line for equal ones that follow each other.
func collapsed(lines []string) (out []string) {
	for i := 0; i < len(lines); {
		n := 1
		for i+n < len(lines) && lines[i+n] == lines[i] {
			n++
		}
		switch {
		case n == 1:
			out = append(out, lines[i])
		case n <= 3:
			out = append(out, fmt.Sprintf("%s, %d times", lines[i], n))
		default: // jitter may change the number
			out = append(out, lines[i]+", many times")
		}
		i += n
	}
	return out
}

// Each way in which a message is handled, waits, fails and returns is recorded, in each mode and
// with brokers that can do less: the calls of the driver, the log, the notifications, and the place
// of the message at the end. A rebuild of the endpoint keeps the recording; "go test ./endpoint
// -run TestRecording -update" writes a change that is wanted.
func TestRecording(t *testing.T) {
	var got strings.Builder
	for _, st := range stories {
		for _, v := range variants {
			if v.name == st.not {
				continue
			}
			var lines []string
			synctest.Test(t, func(t *testing.T) { lines = st.play(t, v) })
			fmt.Fprintf(&got, "== %s / %s\n", st.name, v.name)
			for _, line := range lines {
				fmt.Fprintln(&got, line)
			}
		}
	}
	if *update {
		if err := os.WriteFile(recordingFile, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(recordingFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("-recorded +now:\n%s", diff)
	}
}
