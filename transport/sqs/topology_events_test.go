package sqs_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// The events of the recordings, under their .NET names, and two of this test's own.
type (
	iHappened   struct{ Text string }
	netHappened struct{ Text string }
	goHappened  struct{ Text string }
	goUnknown   struct{ Text string }
)

const (
	baseName    = "Interop.IHappened"
	netName     = "Interop.NetHappened"
	goName      = "Interop.GoHappened"
	unknownName = "Interop.GoUnknown"
)

// system is a set of endpoints with names of their own at the stand-in.
type system struct {
	*testing.T

	broker, prefix string
}

func newSystem(t *testing.T) *system {
	t.Helper()
	return &system{t, brokertest.SQS(t), brokertest.Name(t, "")}
}

func (s *system) transport(topics sqs.EventTopics) *sqs.Transport {
	tr := at(s.broker, false)
	tr.QueuePrefix, tr.TopicPrefix, tr.EventTopics, tr.ShortDelays = s.prefix, s.prefix, topics, true
	return tr
}

// run runs an endpoint until the test ends or stop is called.
func (s *system) run(cfg endpoint.Config) (e *endpoint.Endpoint, stop func()) {
	s.Helper()
	cfg.Install = true
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		s.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(stop)
	return e, stop
}

// publish publishes an event as an endpoint with a setting does, with the base type.
func (s *system) publish(topics sqs.EventTopics, event any) {
	s.Helper()
	e, stop := s.run(endpoint.Config{
		Name: "publisher", Transport: s.transport(topics), SendOnly: true,
		Messages: []endpoint.Message{
			endpoint.Event[goHappened](goName, baseName), endpoint.Event[goUnknown](unknownName, baseName),
			endpoint.Event[iHappened](baseName),
		},
	})
	if err := e.Publish(s.Context(), event); err != nil {
		s.Error(err)
	}
	stop()
}

// handled collects the texts of handled events.
type handled chan string

func newHandled() handled { return make(handled, 1000) }

// await returns n texts that were not returned before, and those that come a while later, sorted.
func (h handled) await(n int) (texts []string) {
	for wait := patience; ; {
		if len(texts) >= n {
			wait = 300 * time.Millisecond
		}
		select {
		case text := <-h:
			texts = append(texts, text)
		case <-time.After(wait):
			slices.Sort(texts)
			return texts
		}
	}
}

// handle returns a handler that adds the text of an event.
func handle[M any](h handled, text func(M) string) endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m M) error {
		h <- text(m)
		return nil
	})
}

// subscriber handles the base type, of which it knows two derived events.
func (s *system) subscriber(topics sqs.EventTopics, h handled) endpoint.Config {
	return endpoint.Config{
		Name: "subscriber", Transport: s.transport(topics),
		Messages: []endpoint.Message{
			endpoint.Event[iHappened](baseName), endpoint.Event[goHappened](goName, baseName),
			endpoint.Event[netHappened](netName, baseName),
		},
		Handlers: []endpoint.Handler{handle(h, func(m iHappened) string { return m.Text })},
	}
}

// An endpoint of NServiceBus that handles an event and its base type subscribes to the topics of
// both.
func TestNServiceBusGetsOneCopyByTheConcreteTopic(t *testing.T) {
	t.Parallel()
	for topics, want := range map[sqs.EventTopics]int{"": 2, sqs.AllTopics: 2, sqs.BothTopics: 2, sqs.ConcreteTopic: 1} {
		t.Run(string(topics), func(t *testing.T) {
			s := newSystem(t)
			net := newNet(t, s.broker, s.prefix, s.prefix+"Net-Peer")
			net.install()
			net.subscribe(goName, baseName)
			s.publish(topics, goHappened{"from Go"})
			got := net.receive()
			if len(got) != want {
				t.Fatalf("%d copies, want %d", len(got), want)
			}
			for _, m := range got {
				types := m.Headers["NServiceBus.EnclosedMessageTypes"]
				if !strings.HasPrefix(types, goName) || !strings.HasSuffix(types, ";"+baseName) || m.body() != `{"Text":"from Go"}` {
					t.Errorf("the types are %s and the body is %s", types, m.body())
				}
			}
		})
	}
}

// A subscriber that is changed gets each event of every publisher once: of changed and unchanged
// ones and of NServiceBus, in both of its forms.
func TestABaseTypeGetsEventsOfEachPublisherOnce(t *testing.T) {
	t.Parallel()
	for _, topics := range []sqs.EventTopics{sqs.BothTopics, sqs.ConcreteTopic} {
		t.Run(string(topics), func(t *testing.T) {
			s := newSystem(t)
			h := newHandled()
			s.run(s.subscriber(topics, h))
			for _, publishes := range []sqs.EventTopics{sqs.AllTopics, sqs.BothTopics, sqs.ConcreteTopic} {
				s.publish(publishes, goHappened{"derived, " + string(publishes)})
				s.publish(publishes, iHappened{"base, " + string(publishes)})
			}
			net := newNet(t, s.broker, s.prefix, s.prefix+"Net-Peer")
			for _, form := range []string{"wrapped", "DoNotWrap"} {
				net.publish(netName, recorded(t, "event with a base", form))
				net.publish(baseName, recorded(t, "event published by its interface", form))
			}
			want := []string{
				"base, all", "base, both", "base, concrete", "by interface", "by interface",
				"derived, all", "derived, both", "derived, concrete", "from .NET", "from .NET",
			}
			if diff := cmp.Diff(want, h.await(len(want))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The order of a change: subscribers get BothTopics, publishers get ConcreteTopic, subscribers get
// ConcreteTopic. Each event is handled once by one process. A publisher that is changed before its
// subscribers loses events.
func TestChangingToTheConcreteTopicLosesNothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	h := newHandled()
	for n, step := range []struct {
		subscriber, publisher sqs.EventTopics
		want                  int
	}{
		{sqs.AllTopics, sqs.AllTopics, 1},
		{sqs.AllTopics, sqs.BothTopics, 1},
		{sqs.AllTopics, sqs.ConcreteTopic, 0}, // the wrong order
		{sqs.BothTopics, sqs.AllTopics, 1},
		{sqs.BothTopics, sqs.BothTopics, 1},
		{sqs.BothTopics, sqs.ConcreteTopic, 1},
		{sqs.ConcreteTopic, sqs.ConcreteTopic, 1},
		{sqs.ConcreteTopic, sqs.AllTopics, 1}, // the way back: publishers first
		{sqs.AllTopics, sqs.AllTopics, 1},
	} {
		text := fmt.Sprintf("%d: to %s by %s", n, step.subscriber, step.publisher)
		_, stop := s.run(s.subscriber(step.subscriber, h))
		s.publish(step.publisher, goHappened{text})
		s.publish(step.publisher, iHappened{text + ", the end"})
		want := append(slices.Repeat([]string{text}, step.want), text+", the end")
		if diff := cmp.Diff(want, h.await(len(want))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		stop()
	}
}

// While a publisher still publishes to the topics of base types, a subscriber that does not know
// its event is warned.
func TestAnEventByABaseTopicOnlyIsOneWarning(t *testing.T) {
	t.Parallel()
	for topics, want := range map[sqs.EventTopics]int{sqs.AllTopics: 0, sqs.BothTopics: 1} {
		t.Run(string(topics), func(t *testing.T) {
			s := newSystem(t)
			h := newHandled()
			var log safeLog
			cfg := s.subscriber(topics, h)
			cfg.Name = "Net.Subscriber" // which has another spelling at SQS
			cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			s.run(cfg)
			s.publish(sqs.AllTopics, goHappened{"known"})
			for _, text := range []string{"unknown 1", "unknown 2"} {
				s.publish(sqs.AllTopics, goUnknown{text})
			}
			if diff := cmp.Diff([]string{"known", "unknown 1", "unknown 2"}, h.await(3)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			text := log.String()
			if got := strings.Count(text, "an event arrived by the topic of a base type only"); got != want ||
				strings.Contains(text, "type="+unknownName) != (want > 0) {
				t.Errorf("%d warnings, want %d:\n%s", got, want, text)
			}
		})
	}
}

// safeLog is a log that a test reads while it is written.
type safeLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *safeLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Tools subscribe, verify and unsubscribe by type: derived types are named like others.
func TestDerivedSubscriptionsAreVerifiedAndRemoved(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	_, stop := s.run(s.subscriber(sqs.ConcreteTopic, newHandled()))
	stop()
	c := open(t, s.transport(sqs.ConcreteTopic), "")
	all := []string{baseName, goName, netName}
	missing := func() (names []string) {
		found, err := c.VerifySubscriptions(t.Context(), "subscriber", all)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.State != transport.Missing {
				t.Errorf("found %v", f)
			}
			names = append(names, f.Name)
		}
		return names
	}
	if got := missing(); got != nil {
		t.Errorf("the endpoint has not subscribed to %v", got)
	}
	if err := c.Unsubscribe(t.Context(), "subscriber", []string{goName, netName}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{goName, netName}, missing()); diff != "" {
		t.Errorf("after Unsubscribe (-want +got):\n%s", diff)
	}
}
