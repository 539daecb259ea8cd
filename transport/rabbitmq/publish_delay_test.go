package rabbitmq_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func delayed(queue, id string, after time.Duration) transport.Operation {
	op := send1(queue, message(id, id))
	op.After = after
	return op
}

// A delayed message arrives as a first attempt, with its headers.
func TestDelayedMessageIsAFirstAttempt(t *testing.T) {
	t.Parallel()
	for _, kind := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			c := open(t, brokertest.RabbitMQ(t), func(tr *rabbitmq.Transport) { tr.QueueType = kind })
			queue := install(t, c, "orders")
			r := receive(t, c, queue, 1)
			sent := delayed(queue, "m", 2500*time.Millisecond) // two levels: it falls once
			due := time.Now().Add(sent.After)
			must(t, dispatch(c, sent))
			for range 2 { // the second as an endpoint's delayed retry: a copy
				d := next(t, r)
				if early := time.Until(due); early > 0 {
					t.Errorf("the message came %v early", early)
				}
				if n := d.Attempt().N; n != 1 {
					t.Errorf("the first delivery after a delay is attempt %d", n)
				}
				for name := range d.Message().Headers.All() {
					if strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "Holdfast.Delay") {
						t.Errorf("the message has a header %q of its way", name)
					}
				}
				again := transport.Operation{Queue: queue, Message: d.Message(), After: time.Second}
				due = time.Now().Add(again.After)
				must(t, dispatch(c, again))
				must(t, d.Complete(t.Context()))
			}
		})
	}
}

// Messages for a deleted queue hold up no others, and are found. With at-least-once dead-lettering,
// a message that cannot be routed is retried for ever, and 32 of them block the level (RabbitMQ,
// NServiceBus.RabbitMQ #1407).
func TestDelayedForADeletedQueue(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	doomed, alive := install(t, c, "doomed"), install(t, c, "alive")
	raw := rawChannel(t, url) // the queue is deleted before they are due
	const lost, fine = 40, 5
	var ops []transport.Operation
	for i := range lost {
		ops = append(ops, delayed(doomed, fmt.Sprint("lost", i), 6*time.Second))
	}
	for i := range fine {
		ops = append(ops, delayed(alive, fmt.Sprint("fine", i), 6*time.Second))
	}
	must(t, dispatch(c, ops...))
	if _, err := raw.QueueDelete(doomed, false, false, false); err != nil {
		t.Fatal(err)
	}
	for _, d := range nextN(t, receive(t, c, alive, fine), fine) {
		must(t, d.Complete(t.Context()))
	}
	found := nextN(t, receive(t, c, "holdfast.delay-lost", lost), lost)
	ids := make([]string, lost)
	for i, d := range found {
		ids[i] = d.Message().ID
		must(t, d.Complete(t.Context()))
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) != lost {
		t.Errorf("found %d of %d messages of the deleted queue", len(ids), lost)
	}
}

// Delayed publishes without subscribers hold up no others.
func TestDelayedWithoutSubscribers(t *testing.T) {
	for name, topology := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t, brokertest.RabbitMQ(t), topology)
			alive := install(t, c, "alive")
			var ops []transport.Operation
			for i := range 70 {
				op := publish1(message(fmt.Sprint("unsubscribed", i), "x"), "Shop.OrderPlaced", "Shop.IOrderEvent")
				op.After = time.Second
				ops = append(ops, op)
			}
			must(t, dispatch(c, append(ops, delayed(alive, "fine", time.Second))...))
			must(t, next(t, receive(t, c, alive, 1)).Complete(t.Context()))
			for _, empty := range []string{"holdfast.delay-level-00", "holdfast.delay-nobody", "holdfast.delay-lost"} {
				waitForReady(t, c, empty, 0)
			}
		})
	}
}

// The time to live of a delayed message counts from its due time.
func TestExpiryOfADelayedMessage(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	short, long := delayed(queue, "short", time.Second), delayed(queue, "long", time.Second)
	short.TTL, long.TTL = time.Millisecond, time.Minute
	must(t, dispatch(c, short, long, delayed(queue, "last", 2*time.Second)))
	waitForReady(t, c, queue, 3) // before anybody receives: short is past its time
	r := receive(t, c, queue, 10)
	var got []string
	for len(got) < 2 {
		d := next(t, r)
		got = append(got, d.Message().ID)
		must(t, d.Complete(t.Context()))
	}
	if !slices.Equal(got, []string{"long", "last"}) {
		t.Errorf("received %q: want the one that lives, then the later one", got)
	}
	nothing(t, r)
	waitForReady(t, c, queue, 0)
}

// waitForReady waits until so many messages are ready in queue.
func waitForReady(t testing.TB, c transport.Conn, queue string, n int64) {
	t.Helper()
	ctx := within(t)
	for {
		stats, err := c.(transport.Inspector).Inspect(ctx, queue)
		if err != nil {
			t.Fatal(err)
		}
		if stats[0].Ready == n {
			return
		}
	}
}

// Another delayed message to the same queue asks the broker nothing.
func TestSecondDelayAsksNothing(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := install(t, c, "orders")
	raw := rawChannel(t, url)
	must(t, dispatch(c, delayed(queue, "first", time.Hour)))
	key := "to.queue." + queue
	if err := raw.QueueUnbind(queue, strings.Repeat("*.", 28)+key, "holdfast.delay-deliveries", nil); err != nil {
		t.Fatal(err)
	}
	must(t, dispatch(c, delayed(queue, "second", time.Second))) // binds nothing: it has been done once
	d := next(t, receive(t, c, "holdfast.delay-lost", 1))
	if id := d.Message().ID; id != "second" {
		t.Errorf("received %q", id)
	}
	must(t, d.Complete(t.Context()))
}

func TestADelayToAMissingQueueFailsAtOnce(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	absent, long := brokertest.Name(t, "absent"), strings.Repeat("q", 200)
	queue := install(t, c, "orders")
	err := dispatch(c, delayed(absent, "a", time.Second), delayed(long, "b", time.Second), delayed(queue, "c", time.Second))
	if got := failures(t, err, transport.ErrNoQueue); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("operations %v failed with ErrNoQueue, want 0 and 1: %v", got, err)
	}
	must(t, next(t, receive(t, c, queue, 1)).Complete(t.Context()))
}

// The routing of delays that no test waits for.
func TestVeryLongDelaysWaitAtTheLevelOfTheirHighestBit(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := install(t, c, "orders")
	for level, delay := range map[string]time.Duration{
		"holdfast.delay-level-17": 48 * time.Hour,
		"holdfast.delay-level-27": 8 * 365 * 24 * time.Hour,
	} {
		must(t, dispatch(c, delayed(queue, level, delay)))
		waitForReady(t, c, level, 1)
	}
	limits := c.Limits()
	if limits.MaxDelay != (1<<28-1)*time.Second {
		t.Errorf("the longest delay is said to be %v", limits.MaxDelay)
	}
	must(t, dispatch(c, delayed(queue, "longest", limits.MaxDelay)))
	if err := dispatch(c, delayed(queue, "too long", limits.MaxDelay+1)); err == nil || errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("a delay that is too long: %v", err)
	}
}

func TestManyDelayedMessagesDueAtOnceAllArrive(t *testing.T) {
	t.Parallel()
	n := 500
	if soak() {
		n = 5000
	}
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	ops := make([]transport.Operation, n)
	for i := range ops {
		ops[i] = delayed(queue, fmt.Sprint(i), 3*time.Second)
	}
	must(t, dispatch(c, ops...))
	seen := make(map[string]bool, n)
	r := receive(t, c, queue, 300)
	for len(seen) < n {
		for _, d := range nextN(t, r, min(100, n-len(seen))) {
			seen[d.Message().ID] = true
			must(t, d.Complete(t.Context()))
		}
	}
}

// The right to configure ends where an installation is to be interrupted, and is enough for the
// last part.
func TestAnInterruptedInstallationOfDelaysIsCompleted(t *testing.T) {
	t.Parallel()
	node := rabbitmq.OwnNode(t)
	half := limited(t, node, `^holdfast\.delay-(lost|arrivals|nobody|level-0.)$`, ".*", ".*")
	for name, complete := range map[string]func(c transport.Conn, queue string) error{
		"by Install": func(c transport.Conn, _ string) error {
			return c.(transport.Installer).Install(within(t), transport.Plan{Delays: true})
		},
		"by a message": func(c transport.Conn, queue string) error { return dispatch(c, delayed(queue, "m", time.Second)) },
	} {
		t.Run(name, func(t *testing.T) {
			raw := rawChannel(t, node.URL)
			// What the last time has left.
			must(t, raw.ExchangeDelete("holdfast.delay-deliveries", false, false))
			if _, err := raw.QueueDelete("holdfast.delay-level-10", false, false, false); err != nil {
				t.Fatal(err)
			}
			err := open(t, half, nil).(transport.Installer).Install(within(t), transport.Plan{Delays: true})
			if err == nil || !strings.Contains(err.Error(), "delay-level-10") {
				t.Fatalf("the installation was to stop at level 10: %v", err)
			}
			c := open(t, node.URL, nil)
			queue := install(t, c, "orders")
			must(t, complete(c, queue))
			if found := verify(t, c, transport.Plan{Delays: true}); len(found) > 0 {
				t.Errorf("missing or different: %v", found)
			}
			must(t, dispatch(c, delayed(queue, "n", 1<<10*time.Second)))
			waitForReady(t, c, "holdfast.delay-level-10", 1)
		})
	}
}

func TestInstallDeclaresTheQueuesOfDelayedMessages(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := brokertest.Name(t, "orders")
	plan := transport.Plan{Queues: []transport.Queue{{Name: queue}, {Name: "error", Shared: true}}, Delays: true}
	for range 2 {
		must(t, c.(transport.Installer).Install(within(t), plan))
	}
	raw, r := rawChannel(t, url), receive(t, c, queue, 1)
	for _, destination := range []string{"to.queue.", "queue."} { // of this version, and of those before it had relays
		key := strings.Repeat("0.", 27) + "1." + destination + queue
		m := amqp.Publishing{MessageId: destination}
		if err := raw.PublishWithContext(t.Context(), "holdfast.delay-level-00", key, true, false, m); err != nil {
			t.Fatal(err)
		}
		d := next(t, r)
		if got := d.Message().ID; got != destination {
			t.Errorf("received %q, want %q", got, destination)
		}
		must(t, d.Complete(t.Context()))
	}
	nothing(t, r)
}
