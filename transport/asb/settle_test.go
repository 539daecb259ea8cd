package asb_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// quickly bounds a settlement that does not wait for the client library's pauses.
const quickly = time.Minute

func TestADroppedConnectionLosesNoDeliveries(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
	c := open(t, on(ns))
	install(t, c, "in")
	dispatch(t, c, to("in", "m-1"), to("in", "m-2"), to("in", "m-3"))
	ds := nextN(t, receive(t, c, "in"), 3)
	ns.Control.Drop()
	began := time.Now()
	must(t, ds[0].Complete(within(t)))
	must(t, ds[1].Retry(within(t)))
	must(t, ds[2].(transport.DeadLetterer).DeadLetter(within(t), "no use"))
	if took := time.Since(began); took > quickly {
		t.Errorf("it took %v", took)
	}
	d := next(t, receive(t, c, "in"))
	if got := d.Attempt(); d.Message().ID != "m-2" || got.N != 2 || !got.Exact {
		t.Errorf("%s in attempt %+v", d.Message().ID, got)
	}
	must(t, d.Complete(within(t)))
	if q := ns.Control.State().Queues["in"]; q.Active != 0 || q.DeadLetters != 1 {
		t.Errorf("%+v is left", q)
	}
}

func TestAnAnswerThatIsLostSettlesOnce(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	for verb, settle := range map[string]func(transport.Delivery, context.Context) error{
		"complete": transport.Delivery.Complete,
		"retry":    transport.Delivery.Retry,
	} {
		dispatch(t, c, to("in", verb))
		r := receive(t, c, "in")
		d := next(t, r)
		ns.Control.Set(brokertest.ServiceBusFaults{Unanswered: 1})
		// It was carried out: the broker does not know the lock any more.
		if err := settle(d, within(t)); err != nil && !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("%s: %v", verb, err)
		}
		ns.Control.Set(brokertest.ServiceBusFaults{})
		if verb == "retry" {
			d := next(t, r)
			if got := d.Attempt().N; got != 2 {
				t.Errorf("attempt %d, want 2", got)
			}
			must(t, d.Complete(within(t)))
		}
		nothing(t, r)
		must(t, r.Close())
	}
}

func TestEveryVerbReportsALostLock(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	r := receive(t, c, "in")
	dispatch(t, c, to("in", "m"))
	for verb, settle := range map[string]func(transport.Delivery, context.Context) error{
		"complete": transport.Delivery.Complete,
		"retry":    transport.Delivery.Retry,
		"release":  transport.Delivery.Release,
		"renew": func(d transport.Delivery, ctx context.Context) error {
			return r.(transport.Renewer).Renew(ctx, []transport.Delivery{d})[0]
		},
	} {
		d := next(t, r)
		ns.Control.LoseLocks("in")
		if err := settle(d, within(t)); !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	must(t, next(t, r).Complete(within(t)))
}

func TestALostDeliveryIsNotInFlight(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.LockDuration = ns.ShortLock(2 * time.Second)
	c := open(t, tr)
	install(t, c, "in")
	for what, lose := range map[string]func(transport.Receiver, transport.Delivery){
		"a renewal is told": func(r transport.Receiver, d transport.Delivery) {
			ns.Control.LoseLocks("in")
			if err := r.(transport.Renewer).Renew(within(t), []transport.Delivery{d})[0]; !errors.Is(err, transport.ErrLeaseLost) {
				t.Errorf("Renew: %v, want ErrLeaseLost", err)
			}
		},
		"its time is over while the namespace is away": func(transport.Receiver, transport.Delivery) {
			ns.Control.Set(brokertest.ServiceBusFaults{RefuseConnections: true})
			ns.Control.Drop()
			<-time.After(tr.LockDuration)
		},
	} {
		t.Run(what, func(t *testing.T) {
			dispatch(t, c, to("in", what))
			r := receive(t, c, "in")
			d := next(t, r)
			lose(r, d)
			settles := ns.Control.State().Counts.Settles
			if err := d.Retry(within(t)); !errors.Is(err, transport.ErrLeaseLost) {
				t.Errorf("Retry: %v, want ErrLeaseLost", err)
			}
			if err := d.Release(within(t)); !errors.Is(err, transport.ErrLeaseLost) {
				t.Errorf("Release: %v, want ErrLeaseLost", err)
			}
			if got := ns.Control.State().Counts.Settles; got != settles {
				t.Error("a lock that is lost was asked for")
			}
			stats, err := c.(transport.Inspector).Inspect(within(t), "in")
			if err != nil || stats[0].Ready != 1 {
				t.Errorf("%+v, %v: the message is not released", stats, err)
			}
			ns.Control.Set(brokertest.ServiceBusFaults{})
			must(t, next(t, r).Complete(within(t)))
			must(t, r.Close())
		})
	}
}

func TestLinksThatTheServiceEndsAreMadeAgain(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
	c := open(t, on(ns))
	install(t, c, "in")
	r := receive(t, c, "in")
	for i := range 5 {
		id := fmt.Sprint("m-", i)
		dispatch(t, c, to("in", id))
		d := next(t, r)
		ns.Control.Detach("in", "")
		must(t, d.Complete(within(t)))
		if got := d.Message().ID; got != id {
			t.Errorf("%s came, want %s", got, id)
		}
	}
	nothing(t, r)
}

// The service may end the links of a queue by any condition. A receiver attaches a new link,
// whether the client library counts the condition as an end or not. Messages that handlers have are
// settled or delivered once more.
func TestALinkThatHasEndedIsReplaced(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{
		"com.microsoft:server-busy", "com.microsoft:timeout", "com.microsoft:operation-cancelled",
		"com.microsoft:message-lock-lost", "com.microsoft:entity-disabled", "amqp:not-found", "amqp:unauthorized-access",
		"amqp:not-allowed", "amqp:resource-limit-exceeded", "amqp:internal-error", "amqp:connection:forced",
		"amqp:link:detach-forced", "amqp:link:transfer-limit-exceeded",
	} {
		t.Run(condition, func(t *testing.T) {
			t.Parallel()
			ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
			c := open(t, on(ns))
			install(t, c, "in")
			r := receive(t, c, "in")
			dispatch(t, c, to("in", "held-1"), to("in", "held-2"), to("in", "held-3"))
			held := nextN(t, r, 3)
			waiting := make(chan transport.Delivery, 1)
			go func() { waiting <- next(t, r) }()
			ns.Control.Detach("in", condition)
			eventuallySent(t, c, to("in", "late"))
			expected := map[string]bool{"late": true}
			for _, d := range held {
				if err := d.Complete(within(t)); err != nil {
					expected[d.Message().ID] = true
				}
			}
			d := <-waiting
			for {
				if !expected[d.Message().ID] {
					t.Errorf("%s came, which was completed or came before", d.Message().ID)
				}
				delete(expected, d.Message().ID)
				must(t, d.Complete(within(t)))
				if len(expected) == 0 {
					break
				}
				d = next(t, r)
			}
			nothing(t, r)
			must(t, r.Close())
		})
	}
}

// eventuallySent sends a message until it is accepted.
func eventuallySent(t *testing.T, c transport.Conn, op transport.Operation) {
	t.Helper()
	ctx := within(t)
	for {
		_, err := c.Dispatch(ctx, []transport.Operation{op})
		switch {
		case err == nil:
			return
		case ctx.Err() != nil:
			t.Fatalf("%s was not accepted: %v", op.Message.ID, err)
		}
	}
}

func TestARetryLeavesItsReasonWithTheMessage(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	dispatch(t, c, to("in", "m"))
	r := receive(t, c, "in")
	for n := 1; n <= 3; n++ {
		must(t, next(t, r).(transport.RetryReasoner).RetryBecause(within(t), fmt.Sprintf("failure %d", n)))
	}
	found, err := rawReceiver(t, ns, "in").PeekMessages(within(t), 1, nil)
	if err != nil || len(found) != 1 {
		t.Fatal(len(found), err)
	}
	properties := found[0].ApplicationProperties
	if properties[asb.PropertyRetryError] != "failure 3" || properties[asb.PropertyRetryInstance] != "instance-1" {
		t.Errorf("the tools show %v", properties)
	}
	m := next(t, r).Message()
	if m.Headers.Len() != 1 || m.Native[asb.PropertyRetryError] != "failure 3" {
		t.Errorf("headers %v, native %v", m.Headers, m.Native)
	}
}

// A panic of the client library must not end the process, nor prevent other messages from being
// received.
func TestAnUnreadableMessageBlocksNoOther(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.LockDuration, tr.MaxDeliveryCount = ns.ShortLock(time.Second), 3
	c := open(t, tr)
	install(t, c, "in")
	putUnreadable(t, ns, "in")
	dispatch(t, c, to("in", "m-1"), to("in", "m-2"))
	r := receive(t, c, "in")
	got := map[string]bool{}
	for len(got) < 2 {
		d := next(t, r)
		got[d.Message().ID] = true
		must(t, d.Complete(within(t)))
	}
	// After many deliveries the broker dead-letters it, with a reason that can be read.
	ctx, stop := context.WithCancel(context.Background())
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer stop()
	receiving.Go(func() {
		for ctx.Err() == nil {
			_, _ = r.Receive(ctx, 1) // fails each time
		}
	})
	dead := next(t, receive(t, c, "in/$DeadLetterQueue"))
	if dead.Message().Native[asb.PropertyDeadLetterReason] != "MaxDeliveryCountExceeded" {
		t.Errorf("%+v", dead.Message())
	}
	must(t, dead.Complete(within(t)))
}

func TestManyMessagesAreHeldByRenewing(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	// A slow machine needs longer than a short lock for so many messages.
	brokertest.Longer(t, 3*time.Second, func(lock time.Duration) error {
		tr.LockDuration = ns.ShortLock(lock)
		c := open(t, tr)
		queue := "in-" + lock.String()
		install(t, c, queue)
		const n = 200
		fill(t, c, queue, n)
		r := receive(t, c, queue)
		ds := nextN(t, r, n)
		for range 4 {
			<-time.After(tr.LockDuration / 3)
			for i, err := range r.(transport.Renewer).Renew(within(t), ds) {
				if err != nil {
					return fmt.Errorf("message %d: %w", i, err)
				}
			}
		}
		errs := make([]error, n)
		var all sync.WaitGroup
		for i, d := range ds {
			all.Go(func() { errs[i] = d.Complete(within(t)) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		nothing(t, r)
		return nil
	})
}

func TestADeadLetterKeepsItsReasonOnAStrictService(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	dispatch(t, c, to("in", "m-1"))
	ns.Control.Set(brokertest.ServiceBusFaults{SymbolsOnly: true})
	must(t, next(t, receive(t, c, "in")).(transport.DeadLetterer).DeadLetter(within(t), "it is of no use"))
	native := next(t, receive(t, c, "in/$DeadLetterQueue")).Message().Native
	if native[asb.PropertyDeadLetterReason] != "it is of no use" || native[asb.PropertyDeadLetterDescription] != "by instance instance-1" {
		t.Errorf("the dead letter says %v", native)
	}
}

// putUnreadable sends a message with a property that the library converts to a text without a
// check.
func putUnreadable(t *testing.T, ns *brokertest.ServiceBusNamespace, queue string) {
	t.Helper()
	err := rawSender(t, ns, queue).SendMessage(within(t), &azservicebus.Message{
		Body: []byte("foreign"), ApplicationProperties: map[string]any{asb.PropertyDeadLetterReason: int64(5)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
}
