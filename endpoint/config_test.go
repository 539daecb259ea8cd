package endpoint_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type unregistered struct{}

func TestNewReportsAllThatIsWrongAtOnce(t *testing.T) {
	cfg := endpoint.Config{
		Concurrency:    math.MaxInt,
		Transactions:   endpoint.TransactionMode(9),
		StopTimeout:    -2,
		Recoverability: recoverability.Config{Immediate: -2, Delays: recoverability.Delays{Delay: -time.Second}},
		Messages: []endpoint.Message{
			{},
			endpoint.Command[harness.PlaceOrder]("Shop.PlaceOrder"),
			endpoint.Command[harness.PlaceOrder]("Shop.PlaceOrderAgain"),
			endpoint.Command[harness.ShipOrder]("Shop.PlaceOrder"),
			endpoint.Event[int]("Shop.Number"),
			endpoint.Event[harness.OrderPlaced]("Shop.Order;Placed"),
		},
		Handlers: []endpoint.Handler{
			{},
			endpoint.Handle(func(context.Context, *endpoint.Session, unregistered) error { return nil }),
			endpoint.Handle[harness.PlaceOrder](nil),
		},
		Routes: []endpoint.Route{{}, endpoint.RouteTo[unregistered]("q"), endpoint.RouteTo[harness.PlaceOrder]("")},
	}
	cfg.Pipeline.Logical.Before("nothing", "mine", func(next pipeline.Func[*pipeline.Logical]) pipeline.Func[*pipeline.Logical] {
		return next
	})
	_, err := endpoint.New(cfg)
	if err == nil {
		t.Fatal("New accepted it")
	}
	for _, want := range []string{
		"Name is empty", "Transport is nil", "it must be from 1 to 65536", "TransactionMode(9)", "Immediate is -2",
		"Delays.Delay is negative", "StopTimeout is negative", "a zero Message", "registered twice", "belongs to both", "a message is a struct",
		`"Shop.Order;Placed" is empty or has a character`, "a zero Handler", "not registered: add it to Config.Messages",
		"a zero Route", "the queue is empty", `stage Logical: there is no behavior "nothing"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}

func TestNewCopiesTheConfig(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var heard harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m harness.OrderPlaced) error {
			heard.Add(m.ID)
			return nil
		}))
		e, err := endpoint.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		clear(cfg.Messages)
		clear(cfg.Handlers)
		clear(cfg.Routes)
		r := harness.Run(t, e)
		if err := r.Publish(t.Context(), harness.OrderPlaced{ID: "7"}); err != nil {
			t.Fatal(err)
		}
		r.MustSend(harness.ShipOrder{})
		synctest.Wait()
		if len(heard.List()) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Errorf("heard %q, shipping has %d messages", heard.List(), len(broker.Messages("shipping")))
		}
	})
}

func TestAnEndpointIsNotItsOwnErrorQueue(t *testing.T) {
	cfg := harness.Sales(&inmemory.Transport{})
	cfg.Name = "error"
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), `are both "error"`) {
		t.Errorf("New gives %v", err)
	}
	cfg.Recoverability.ErrorQueue = "failed again"
	if _, err := endpoint.New(cfg); err != nil {
		t.Error(err)
	}
}

func TestRunRefusesWhatTheTransportDoesNotOffer(t *testing.T) {
	handler := endpoint.Handle(func(context.Context, *endpoint.Session, harness.OrderPlaced) error { return nil })
	for name, c := range map[string]struct {
		without inmemory.Capability
		mode    endpoint.TransactionMode
		install bool
		want    string
	}{
		"no transactions": {inmemory.Transactor, endpoint.SendsAtomicWithReceive, true, "does not offer SendsAtomicWithReceive"},
		"no publishing":   {inmemory.Subscriber, endpoint.ReceiveOnly, true, "cannot publish"},
		"no installer":    {inmemory.Installer, endpoint.ReceiveOnly, true, "cannot create queues"},
		"no queue":        {0, endpoint.ReceiveOnly, false, "no such queue"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := harness.Sales(&inmemory.Transport{Without: c.without}, handler)
			cfg.Transactions, cfg.Install = c.mode, c.install
			e, err := endpoint.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Run gives %v, want something with %q", err, c.want)
			}
			if err := e.Run(t.Context()); err == nil {
				t.Error("it ran twice")
			}
		})
	}
}

func TestSendingWhatCannotBeSentSaysWhyAndWhatToDo(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker)
		cfg.Routes = nil
		r := harness.Start(t, cfg)
		ctx := t.Context()
		delayed := endpoint.OutgoingOption(func(out *pipeline.Outgoing) { out.After = 1 })
		queued := endpoint.OutgoingOption(func(out *pipeline.Outgoing) { out.Queue = "other" })
		aimless := endpoint.OutgoingOption(func(out *pipeline.Outgoing) { out.Intent = "Hint" })
		untyped := endpoint.OutgoingOption(func(out *pipeline.Outgoing) { out.Types = nil })
		const atOnce = "a published message goes to its subscribers at once: it has no queue and no delay"
		for name, c := range map[string]struct{ got, want error }{
			"no route":       {r.Send(ctx, harness.ShipOrder{}), errors.New("send Shop.ShipOrder: no route: register the command with a queue, as in Command[T](name).To(queue), or use the option To")},
			"an event":       {r.Send(ctx, harness.OrderPlaced{}), errors.New("send Shop.OrderPlaced: it is an event: use Publish")},
			"a command":      {r.Publish(ctx, harness.ShipOrder{}), errors.New("publish Shop.ShipOrder: it is a command: only events are published; use Send")},
			"unknown":        {r.Send(ctx, unregistered{}), errors.New("send endpoint_test.unregistered: endpoint_test.unregistered: not registered: add it to Config.Messages")},
			"nil pointer":    {r.Send(ctx, (*harness.ShipOrder)(nil)), errors.New("send *harness.ShipOrder: the message is a nil *harness.ShipOrder")},
			"delayed event":  {r.Publish(ctx, harness.OrderPlaced{}, delayed), errors.New("publish Shop.OrderPlaced: " + atOnce)},
			"event's queue":  {r.Publish(ctx, harness.OrderPlaced{}, queued), errors.New("publish Shop.OrderPlaced: " + atOnce)},
			"no id":          {r.Send(ctx, harness.ShipOrder{}, endpoint.To("other"), endpoint.MessageID("")), errors.New("send Shop.ShipOrder: the message id is empty")},
			"no intent":      {r.Send(ctx, harness.ShipOrder{}, aimless), errors.New(`send Shop.ShipOrder: the intent "Hint" is unknown`)},
			"no types":       {r.Send(ctx, harness.ShipOrder{}, endpoint.To("other"), untyped), errors.New("send Shop.ShipOrder: the message has no types")},
			"negative delay": {r.Send(ctx, harness.ShipOrder{}, endpoint.To("other"), endpoint.After(-1)), errors.New("send Shop.ShipOrder: After and ExpireAfter must not be negative")},
		} {
			if c.got == nil || c.got.Error() != c.want.Error() {
				t.Errorf("%s: got %v, want %v", name, c.got, c.want)
			}
		}
		if err := r.Send(ctx, harness.ShipOrder{}, endpoint.To("nowhere")); !errors.Is(err, transport.ErrNoQueue) {
			t.Errorf("missing queue: got %v, want ErrNoQueue", err)
		}
	})
}

// A delayed message arrives when the message is due, and can be canceled before.
func TestADelayedMessageArrivesWhenDue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := harness.Start(t, harness.Sales(broker))
		var receipt transport.Receipt
		due := time.Now().Add(time.Hour)
		r.MustSend(harness.ShipOrder{ID: "kept"}, endpoint.At(due))
		r.MustSend(harness.ShipOrder{ID: "cancelled"}, endpoint.After(time.Minute), endpoint.ReceiptIn(&receipt))
		r.MustSend(harness.ShipOrder{ID: "expires"}, endpoint.ExpireAfter(time.Second))
		if err := r.Cancel(t.Context(), receipt); err != nil {
			t.Fatal(err)
		}
		if err := r.Cancel(t.Context(), receipt); !errors.Is(err, transport.ErrNotFound) {
			t.Errorf("second Cancel: %v", err)
		}
		time.Sleep(time.Hour - time.Second)
		if got := broker.Messages("shipping"); len(got) != 0 {
			t.Errorf("too early: %v", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		got := broker.Messages("shipping")
		if len(got) != 1 || got[0].Headers.Get(header.DeliverAt) != header.FormatTime(due) {
			t.Errorf("got %v", got)
		}
	})
}

func TestASendOnlyEndpointSendsAndHasNoQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker)
		cfg.SendOnly = true
		r := harness.Start(t, cfg)
		r.MustSend(harness.ShipOrder{})
		sent := broker.Messages("shipping")
		if len(sent) != 1 || sent[0].Headers.Get(header.ReplyToAddress) != "" {
			t.Errorf("sent %v", sent)
		}
		if err := broker.Put("sales", &transport.Message{}); !errors.Is(err, transport.ErrNoQueue) {
			t.Errorf("it has a queue: %v", err)
		}
	})
}

func TestRunAllRunsOnWhenOneEndsAndReturnsAllErrors(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		ok, err := endpoint.New(harness.Sales(broker))
		if err != nil {
			t.Fatal(err)
		}
		away := harness.Sales(&inmemory.Transport{Fail: func(string, string) error { return errNo }})
		away.Name = "away"
		broken, err := endpoint.New(away)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- endpoint.RunAll(ctx, ok, broken) }()
		if err := ok.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := ok.Send(ctx, harness.ShipOrder{}); err != nil {
			t.Errorf("the other endpoint does not run: %v", err)
		}
		cancel()
		if err := <-done; !errors.Is(err, errNo) || !strings.Contains(err.Error(), `endpoint "away": connect`) {
			t.Errorf("RunAll gives %v", err)
		}
	})
}

func TestTheDriversOwnQueuesAreWorkedOnInEveryMode(t *testing.T) {
	for _, mode := range []endpoint.TransactionMode{endpoint.ReceiveOnly, endpoint.None, endpoint.SendsAtomicWithReceive} {
		t.Run(mode.String(), func(t *testing.T) { workOnTheDriversOwnQueue(t, mode) })
	}
}

func workOnTheDriversOwnQueue(t *testing.T, mode endpoint.TransactionMode) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("dead")
		var tries harness.Tally
		broker.Satellites = []transport.Satellite{{
			Queue: "dead",
			Handle: func(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
				if tries.Add(m.ID) < 3 {
					return nil, errNo
				}
				return []transport.Operation{{Message: m, Queue: "error"}}, nil
			},
		}}
		cfg := harness.Sales(broker)
		cfg.Transactions = mode
		r := harness.Start(t, cfg)
		if err := broker.Put("dead", &transport.Message{ID: "m-1"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r.End() // releases the messages that were not settled
		if len(tries.List()) != 3 || len(broker.Messages("error")) != 1 || len(broker.Messages("dead")) != 0 {
			t.Errorf("%d tries, %d in the error queue", len(tries.List()), len(broker.Messages("error")))
		}
	})
}

// A message that the broker gave up moves to the error queue with the broker's reason.
func TestDeadLettersMoveToTheErrorQueueWithAReason(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("dead")
		broker.Satellites = []transport.Satellite{{
			Queue: "dead",
			Handle: func(context.Context, *transport.Message) ([]transport.Operation, error) {
				return nil, &transport.DeadLetteredError{Queue: "sales", Reason: "delivery_limit"}
			},
		}}
		cfg := harness.Sales(broker)
		var told, asked harness.Tally
		cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, f recoverability.Failure) error {
			told.Add(f.MessageID)
			return s.Send(ctx, harness.ShipOrder{})
		}
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			asked.Add(f.MessageID)
			return recoverability.Retry{}
		}
		harness.Start(t, cfg)
		if err := broker.Put("dead", &transport.Message{ID: "m-1", Body: []byte("body")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		failed := broker.Messages("error")
		if len(failed) != 1 || len(broker.Messages("dead")) != 0 || len(broker.Messages("shipping")) != 1 {
			t.Fatalf("%d in the error queue", len(failed))
		}
		m := failed[0]
		for name, want := range map[string]string{
			header.FailedQ: "sales", header.HoldfastFaultClass: "dead-lettered",
			header.ExceptionMessage: `dead-lettered by the broker in queue "sales": delivery_limit, 1 time(s)`,
		} {
			if got := m.Headers.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if got := titleOf(m.Headers); got != "*transport.DeadLetteredError: github.com/holdfast-go/holdfast/pipeline.Receive()" {
			t.Errorf("group %q", got)
		}
		if m.ID != "m-1" || string(m.Body) != "body" || len(told.List()) != 1 || len(asked.List()) != 0 {
			t.Errorf("%q %q, final failures %v, decisions %v", m.ID, m.Body, told.List(), asked.List())
		}
	})
}

func TestACommandIsSentToTheQueueOfItsMessage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("packing")
		cfg := harness.Sales(broker)
		cfg.Messages = []endpoint.Message{endpoint.Command[harness.ShipOrder]("Shop.ShipOrder").To("packing")}
		cfg.Routes = []endpoint.Route{endpoint.RouteTo[harness.ShipOrder]("packing")} // the same queue: no conflict
		harness.Start(t, cfg).MustSend(harness.ShipOrder{ID: "7"})
		if n := len(broker.Messages("packing")); n != 1 {
			t.Errorf("%d messages in the queue, want 1", n)
		}
	})
}

func TestAMessageIsRefusedWithAQueueThatCannotBe(t *testing.T) {
	for want, cfg := range map[string]endpoint.Config{
		`it has two, to "packing" and to "shipping"`: {
			Messages: []endpoint.Message{endpoint.Command[harness.ShipOrder]("Shop.ShipOrder").To("packing")},
			Routes:   []endpoint.Route{endpoint.RouteTo[harness.ShipOrder]("shipping")},
		},
		"it is an event": {Messages: []endpoint.Message{endpoint.Event[harness.OrderPlaced]("Shop.OrderPlaced").To("packing")}},
		"queue is empty": {Messages: []endpoint.Message{endpoint.Command[harness.ShipOrder]("Shop.ShipOrder").To("")}},
	} {
		cfg.Name, cfg.Transport = "sales", &inmemory.Transport{}
		if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New returned %v, want %q", err, want)
		}
	}
}

// New refuses names, addresses and content types that not every broker keeps in headers.
func TestNewRefusesTextsThatHeadersLose(t *testing.T) {
	for _, text := range []string{"a\xff", "a\tb", "a\u0085", "\x00"} {
		for field, set := range map[string]func(cfg *endpoint.Config){
			"Name":        func(cfg *endpoint.Config) { cfg.Name = text },
			"Instance":    func(cfg *endpoint.Config) { cfg.Instance, cfg.InstanceQueue = text, true },
			"ErrorQueue":  func(cfg *endpoint.Config) { cfg.Recoverability.ErrorQueue = text },
			"a rule":      func(cfg *endpoint.Config) { cfg.Recoverability.Rules = []recoverability.Rule{{ErrorQueue: text}} },
			"AuditQueue":  func(cfg *endpoint.Config) { cfg.AuditQueue = text },
			"Message.To":  func(cfg *endpoint.Config) { cfg.Messages[0] = cfg.Messages[0].To(text); cfg.Routes = nil },
			"RouteTo":     func(cfg *endpoint.Config) { cfg.Routes[0] = endpoint.RouteTo[harness.ShipOrder](text) },
			"ContentType": func(cfg *endpoint.Config) { cfg.Serializers = []serialization.Serializer{xmlSerializer{text}} },
		} {
			cfg := harness.Sales(&inmemory.Transport{})
			set(&cfg)
			if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "a control character") {
				t.Errorf("%s %q: %v", field, text, err)
			}
		}
	}
	if _, err := endpoint.New(harness.Sales(&inmemory.Transport{})); err != nil {
		t.Error(err)
	}
}
