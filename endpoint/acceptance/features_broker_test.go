package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
)

// What an endpoint offers, once on a broker with transactions and once on one with
// acknowledgements: the cases are in the tests of each feature.
func TestFeatures(t *testing.T) {
	others := []string{"classic", "servicebus", "sqs", "sqlite"}
	onBrokers(t, []string{"quorum", "postgres"}, others, func(t *testing.T, broker string) {
		on := openBroker(t, broker)
		for feature, show := range features {
			t.Run(feature, func(t *testing.T) {
				t.Parallel()
				show(&stage{T: t, broker: on, name: feature, heard: make(chan string, 100)})
			})
		}
	})
}

// features are shown apart from each other: each has queues that begin with its name.
var features = map[string]func(*stage){
	"reply":         (*stage).reply,
	"publish":       (*stage).publish,
	"local":         (*stage).local,
	"instances":     (*stage).instances,
	"delays":        (*stage).delays,
	"expiry":        (*stage).expiry,
	"audit":         (*stage).audit,
	"at-most":       (*stage).atMost,
	"timeout":       (*stage).timeout,
	"serializers":   (*stage).serializers,
	"none":          (*stage).none,
	"attempts":      (*stage).attempts,
	"unrecoverable": (*stage).unrecoverable,
	"quarantine":    (*stage).quarantine,
}

// stage is where a feature is shown.
type stage struct {
	*testing.T
	broker transport.Transport
	name   string
	heard  chan string
}

func (s *stage) config(name string, handlers ...endpoint.Handler) endpoint.Config {
	cfg := cancelling(s.broker, handlers...)
	cfg.Name, cfg.Routes = s.name+"-"+name, nil
	cfg.Messages = append(cfg.Messages, endpoint.Command[reminder]("Shop.Reminder"))
	cfg.Recoverability.ErrorQueue = s.name + "-error"
	return cfg
}

func (s *stage) hear(format string, args ...any) error {
	s.heard <- fmt.Sprintf(format, args...)
	return nil
}

// expect waits for what is to be heard, in any order.
func (s *stage) expect(want ...string) {
	s.Helper()
	var got []string
	for len(got) < len(want) {
		select {
		case h := <-s.heard:
			got = append(got, h)
		case <-time.After(timeLimit):
			s.Fatalf("heard %q, want %q", got, want)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("heard (-want +got):\n%s", diff)
	}
}

// failed is the message in the error queue.
func (s *stage) failed(class string) {
	s.Helper()
	m := takeOne(s.T, s.broker, s.name+"-error")
	if got := m.Headers.Get(header.HoldfastFaultClass); got != class {
		s.Errorf("class %q, want %q: %s", got, class, m.Headers.Get(header.ExceptionMessage))
	}
	if len(s.heard) > 0 {
		s.Errorf("heard %q besides", <-s.heard)
	}
}

// hearing is a handler that tells of each message's id.
func (s *stage) hearing(as string) endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m placeOrder) error { return s.hear("%s %s", as, m.ID) })
}

func (s *stage) reply() {
	start(s.T, s.config("server", endpoint.Handle(func(ctx context.Context, in *endpoint.Session, m placeOrder) error {
		return in.Reply(ctx, orderAccepted(m))
	})))
	client := start(s.T, s.config("client", endpoint.Handle(func(_ context.Context, in *endpoint.Session, m orderAccepted) error {
		return s.hear("%s for %s", m.ID, in.Header(header.CorrelationID))
	})))
	client.send(placeOrder{"7"}, endpoint.To(s.name+"-server"), endpoint.MessageID("q"))
	s.expect("7 for q")
}

func (s *stage) publish() {
	start(s.T, s.config("own", endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m orderCancelled) error {
		return s.hear("own %s %s", m.ID, m.Reason)
	})))
	start(s.T, s.config("base", endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m orderEvent) error {
		return s.hear("base %s", m.ID)
	})))
	r := start(s.T, s.config("both",
		endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m orderCancelled) error { return s.hear("both %s", m.ID) }),
		endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m orderEvent) error { return s.hear("both base %s", m.ID) })))
	if err := r.Publish(s.Context(), orderCancelled{"7", "late"}); err != nil {
		s.Fatal(err)
	}
	s.expect("own 7 late", "base 7", "both 7", "both base 7")
}

func (s *stage) local() {
	start(s.T, s.config("other", s.hearing("other")))
	r := start(s.T, s.config("main",
		endpoint.Handle(func(ctx context.Context, in *endpoint.Session, m placeOrder) error {
			return errors.Join(in.SendLocal(ctx, shipOrder(m)), in.Forward(ctx, s.name+"-other"))
		}),
		endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m shipOrder) error { return s.hear("local %s", m.ID) })))
	if err := r.SendLocal(s.Context(), placeOrder{"7"}); err != nil {
		s.Fatal(err)
	}
	s.expect("local 7", "other 7")
}

func (s *stage) instances() {
	var rs []*running
	for _, instance := range []string{"one", "two"} {
		cfg := s.config("many", s.hearing(instance),
			endpoint.Handle(func(ctx context.Context, in *endpoint.Session, m shipOrder) error {
				return in.Reply(ctx, orderAccepted(m))
			}),
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m orderAccepted) error {
				return s.hear("reply %s at %s", m.ID, instance)
			}))
		cfg.Instance, cfg.InstanceQueue = instance, true
		rs = append(rs, start(s.T, cfg))
	}
	for i := range 4 {
		rs[0].send(placeOrder{fmt.Sprint(i)}, endpoint.ToThisInstance())
		rs[1].send(shipOrder{fmt.Sprint(i)}, endpoint.To(s.name+"-many"), endpoint.ReplyToThisInstance())
	}
	s.expect("one 0", "one 1", "one 2", "one 3", "reply 0 at two", "reply 1 at two", "reply 2 at two", "reply 3 at two")
}

func (s *stage) delays() {
	r := start(s.T, s.config("due", endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m reminder) error {
		return s.hear("%s early: %v", m.ID, time.Since(m.Due) < -5*time.Millisecond)
	})))
	own, due := endpoint.To(s.name+"-due"), time.Now().Add(time.Second)
	r.send(reminder{"after", due}, own, endpoint.After(time.Second))
	r.send(reminder{"at", due}, own, endpoint.At(due))
	r.send(reminder{"now", time.Now()}, own)
	s.expect("now early: false", "after early: false", "at early: false") // in any order: a busy machine sends the last one late
}

func (s *stage) expiry() {
	cfg := s.config("slow", s.hearing("kept"))
	e, err := endpoint.New(cfg)
	if err == nil {
		err = e.Install(s.Context())
	}
	if err != nil {
		s.Fatal(err)
	}
	r, own := start(s.T, s.config("sender")), endpoint.To(cfg.Name)
	r.send(placeOrder{"expired"}, own, endpoint.ExpireAfter(300*time.Millisecond))
	r.send(placeOrder{"late"}, own, endpoint.ExpireAfter(time.Hour))
	r.send(placeOrder{"for ever"}, own)
	<-time.After(time.Second)
	run(s.T, e)
	s.expect("kept late", "kept for ever")
}

func (s *stage) audit() {
	cfg := s.config("audited", s.hearing("handled"))
	cfg.AuditQueue = s.name + "-copies"
	start(s.T, cfg).send(placeOrder{"7"}, endpoint.To(cfg.Name), endpoint.MessageID("m"))
	s.expect("handled 7")
	m := takeOne(s.T, s.broker, cfg.AuditQueue)
	if m.ID != "m" || string(m.Body) != `{"ID":"7"}` || m.Headers.Get(header.ProcessingEndpoint) != cfg.Name {
		s.Errorf("the copy is %q of %q: %s", m.ID, m.Headers.Get(header.ProcessingEndpoint), m.Body)
	}
}

func (s *stage) atMost() {
	var running atomic.Int32
	cfg := s.config("few", endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error {
		defer running.Add(-1)
		n := running.Add(1)
		<-time.After(20 * time.Millisecond)
		return s.hear("%d at once", n)
	}))
	cfg.Messages[0], cfg.Concurrency = cfg.Messages[0].AtMost(1), 8
	r := start(s.T, cfg)
	for range 5 {
		r.send(placeOrder{}, endpoint.To(cfg.Name))
	}
	s.expect(slices.Repeat([]string{"1 at once"}, 5)...)
}

// once has no retries.
func (s *stage) once(cfg endpoint.Config) endpoint.Config {
	cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = recoverability.None, recoverability.None
	return cfg
}

func (s *stage) timeout() {
	cfg := s.once(s.config("long", endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ placeOrder) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})))
	cfg.HandlerTimeout = 100 * time.Millisecond
	start(s.T, cfg).send(placeOrder{}, endpoint.To(cfg.Name))
	s.failed(recoverability.ClassTimeout)
}

func (s *stage) serializers() {
	cfg := s.config("polyglot", s.hearing("read"))
	cfg.Serializers = []serialization.Serializer{xmlSerializer{"text/xml"}, serialization.JSON}
	start(s.T, cfg).send(placeOrder{"xml"}, endpoint.To(cfg.Name))
	start(s.T, s.config("sender")).send(placeOrder{"json"}, endpoint.To(cfg.Name))
	s.expect("read xml", "read json")
}

// failing tells of each attempt, and fails.
func (s *stage) failing(err error) endpoint.Handler {
	return endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error {
		return errors.Join(s.hear("failed"), err)
	})
}

func (s *stage) none() {
	cfg := s.config("unsafe", s.failing(errNo))
	cfg.Transactions = endpoint.None
	start(s.T, cfg).send(placeOrder{}, endpoint.To(cfg.Name))
	s.expect("failed")
	s.failed(recoverability.Class(errors.Join(errNo)))
}

func (s *stage) attempts() {
	cfg := s.config("stubborn", s.failing(errNo))
	cfg.Recoverability.Immediate, cfg.Recoverability.Delayed, cfg.Recoverability.Delays.Delay = 2, 1, time.Second
	start(s.T, cfg).send(placeOrder{}, endpoint.To(cfg.Name))
	s.expect(slices.Repeat([]string{"failed"}, (2+1)*(1+1))...)
	s.failed(recoverability.Class(errors.Join(errNo)))
}

func (s *stage) unrecoverable() {
	cfg := s.config("hopeless", s.failing(recoverability.Unrecoverable(errNo)))
	start(s.T, cfg).send(placeOrder{}, endpoint.To(cfg.Name))
	s.expect("failed")
	s.failed(recoverability.ClassUnrecoverable)
}

// quarantine: what comes there is handled alone, and begins afresh when it fails.
func (s *stage) quarantine() {
	cfg := s.once(s.config("guarded", s.failing(errNo)))
	cfg.Recoverability.Quarantine.Idle = leastIdle
	r := start(s.T, cfg)
	r.send(placeOrder{}, endpoint.To(cfg.Name+".quarantine"), endpoint.OutgoingOption(func(out *pipeline.Outgoing) {
		out.Headers = fault.QuarantineHeaders(out.Headers, cfg.Name, 7)
	}))
	s.expect("failed")
	m := takeOne(s.T, s.broker, s.name+"-error")
	for name := range m.Headers.All() {
		if strings.HasPrefix(name, "Holdfast.Quarantine.") {
			s.Errorf("the error copy has %s", name)
		}
	}
	if got := m.Headers.Get(header.FailedQ); got != addressOn(s.T, s.broker, cfg.Name) {
		s.Errorf("failed in %q", got)
	}
}

type reminder struct {
	ID  string
	Due time.Time
}
