package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// failures are the indexes of the operations that failed with target.
func failures(t *testing.T, err, target error) []int {
	t.Helper()
	var e *transport.DispatchError
	if !errors.As(err, &e) {
		t.Fatalf("%v is no DispatchError", err)
	}
	var at []int
	for _, op := range e.Ops {
		if !errors.Is(op.Err, target) {
			t.Errorf("operation %d: %v, want %v", op.Index, op.Err, target)
		}
		at = append(at, op.Index)
	}
	return at
}

func TestAMissingQueueFailsItsOwnOperationsOnly(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue, absent := install(t, c, "orders"), brokertest.Name(t, "absent")
	m := message("same", "x")
	err := dispatch(c, send1(queue, m), send1(absent, m), send1(queue, m), send1(strings.Repeat("q", 256), m), send1(absent, m))
	if diff := cmp.Diff([]int{1, 3, 4}, failures(t, err, transport.ErrNoQueue)); diff != "" {
		t.Errorf("failed operations (-want +got):\n%s", diff)
	}
	r := receive(t, c, queue, 10)
	for _, d := range nextN(t, r, 2) {
		must(t, d.Complete(t.Context()))
	}
	nothing(t, r)
}

func TestManyMissingQueuesAtOnceAreDistinguished(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue, absent := install(t, c, "orders"), brokertest.Name(t, "absent")
	var wg sync.WaitGroup
	for g := range 20 {
		wg.Go(func() {
			for i := range 50 {
				m := message(fmt.Sprint(g, "-", i), "x")
				err := dispatch(c, send1(absent, m))
				if !errors.Is(err, transport.ErrNoQueue) {
					t.Errorf("send to a missing queue: %v", err)
				}
				must(t, dispatch(c, send1(queue, m)))
			}
		})
	}
	wg.Wait()
}

func TestABatchLargerThanTheWindowKeepsItsOrder(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	const n = 2500
	var wg sync.WaitGroup
	for range 3 { // several at once must not wait for each other's places
		wg.Go(func() {
			var ops []transport.Operation
			for i := range n {
				ops = append(ops, send1(queue, message(fmt.Sprint(i), "x")))
			}
			must(t, dispatch(c, ops...))
		})
	}
	wg.Wait()
	r := receive(t, c, queue, 1000)
	last := map[string]int{}
	for range 3 * n {
		d := next(t, r)
		last[d.Message().ID]++
		must(t, d.Complete(t.Context()))
	}
	for i := range n {
		if got := last[fmt.Sprint(i)]; got != 3 {
			t.Fatalf("message %d arrived %d times, want 3", i, got)
		}
	}
}

func TestOperationsOfADispatchArriveInOrder(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	var ops []transport.Operation
	for i := range 100 {
		ops = append(ops, send1(queue, message(fmt.Sprint(i), "x")))
	}
	must(t, dispatch(c, ops...))
	for i, d := range nextN(t, receive(t, c, queue, 100), 100) {
		if got := d.Message().ID; got != fmt.Sprint(i) {
			t.Fatalf("message %q at place %d", got, i)
		}
		must(t, d.Complete(t.Context()))
	}
}

func TestTooLargeMessagesAreRefusedBeforeTheyAreSent(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	limits := c.Limits()
	largest := message("largest", "x")
	largest.Headers.Set("h", strings.Repeat("v", limits.MaxHeaders-largest.Headers.Size()-1))
	over := message("headers", "x")
	over.Headers.Set("h", strings.Repeat("v", 131072))
	name := message("name", "x")
	name.Headers.Set(strings.Repeat("n", 256), "v")
	err := dispatch(c,
		send1(queue, largest),
		send1(queue, over),
		send1(queue, name),
		send1(queue, &transport.Message{ID: "body", Body: make([]byte, limits.MaxBody+1)}),
		send1(queue, message("fits", "x")))
	if diff := cmp.Diff([]int{1, 2, 3}, failures(t, err, transport.ErrTooLarge)); diff != "" {
		t.Errorf("failed operations (-want +got):\n%s", diff)
	}
	var size *transport.TooLargeError
	if !errors.As(err, &size) || size.What != "headers" || size.Size < 131072 || size.Max > 131072 {
		t.Errorf("the first failure says %+v", size)
	}
	r := receive(t, c, queue, 10)
	for _, want := range []string{"largest", "fits"} {
		if got := next(t, r).Message().ID; got != want {
			t.Errorf("received %q, want %q", got, want)
		}
	}
}

// The client library must not be brought to close the connection: every size around
// the limit is either refused by us or accepted by the broker.
func TestTheHeaderLimitIsExact(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	refused := 0
	for size := 131072 - 200; size <= 131072; size++ {
		m := &transport.Message{ID: "m", Headers: header.New(header.Field{Name: "h", Value: strings.Repeat("v", size)})}
		err := dispatch(c, send1(queue, m))
		if err == nil && refused > 0 {
			t.Fatalf("a header of %d bytes is accepted, a smaller one was not", size)
		}
		if err != nil && !errors.Is(err, transport.ErrTooLarge) {
			t.Fatalf("a header of %d bytes: %v", size, err)
		}
		if err != nil {
			refused++
		}
	}
	const brokers = 64 // bytes are left for the broker's counters
	if refused <= brokers || refused > brokers+60 {
		t.Errorf("%d sizes refused", refused)
	}
}

// A copy that is as large as a frame arrives, without the properties that have no room.
func TestACopyWithoutRoomForItsPropertiesArrives(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue, other := install(t, c, "orders"), install(t, c, "other")
	const frame = 131072
	appID := strings.Repeat("a", 255)
	sized := func(size int) *transport.Message {
		return &transport.Message{ID: "m", Headers: header.New(header.Field{Name: "h", Value: strings.Repeat("v", size)})}
	}
	largest := frame
	for dispatch(c, send1(other, sized(largest))) != nil {
		if largest--; largest < frame-200 {
			t.Fatal("no size is accepted")
		}
	}
	r := receive(t, c, queue, 10)
	for size, want := range map[int]string{largest: "", largest - 300: appID} {
		m := sized(size)
		m.Native = map[string]string{rabbitmq.PropertyAppID: appID, rabbitmq.PropertyPriority: "many", rabbitmq.PropertyTimestamp: "today"}
		must(t, dispatch(c, send1(queue, m)))
		d := nextN(t, r, 1)[0]
		if got := d.Message().Native[rabbitmq.PropertyAppID]; got != want {
			t.Errorf("%d bytes: app-id of %d bytes, want %d", size, len(got), len(want))
		}
		must(t, d.Complete(t.Context()))
	}
}

func TestAnOperationWithoutAnAddressIsRefused(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	if err := dispatch(c, transport.Operation{Message: message("a", "x")}); err == nil {
		t.Error("it was accepted")
	}
	must(t, dispatch(c))
}

// Headers by which the broker routes are refused, and are not passed on. The broker closes the
// channel, and so fails all that is under way, over such a header that is no list.
func TestHeadersThatRouteAreRefused(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue, other := install(t, c, "orders"), install(t, c, "other")
	var ops []transport.Operation
	for _, name := range []string{"CC", "BCC"} {
		m := message(name, "x")
		m.Headers.Set(name, other)
		ops = append(ops, send1(queue, m), send1(queue, message("fine", "x")))
	}
	err := dispatch(c, ops...)
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Ops) != 2 || failed.Ops[0].Index != 0 || failed.Ops[1].Index != 2 || errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("%v", err)
	}
	r := receive(t, c, queue, 10)
	for _, d := range nextN(t, r, 2) {
		must(t, d.Complete(t.Context()))
	}

	foreign := amqp.Publishing{MessageId: "foreign", Headers: amqp.Table{"CC": []any{other}}}
	must(t, rawChannel(t, url).PublishWithContext(t.Context(), "", queue, false, false, foreign))
	d := next(t, r)
	must(t, dispatch(c, send1(other, d.Message()))) // as to an error queue
	must(t, d.Complete(t.Context()))
	for _, d := range nextN(t, receive(t, c, other, 10), 2) {
		must(t, d.Complete(t.Context()))
	}
}

func TestATTLDiscardsTheMessage(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	brief := send1(queue, message("brief", "x"))
	brief.TTL = time.Nanosecond // a millisecond on the wire
	long := send1(queue, message("long", "x"))
	long.TTL = 1<<63 - 1
	month := send1(queue, message("month", "x"))
	month.TTL = 49 * 24 * time.Hour
	must(t, dispatch(c, brief, long, month))
	<-time.After(50 * time.Millisecond) // the broker's clock
	r := receive(t, c, queue, 10)
	for _, want := range []string{"long", "month"} {
		d := next(t, r)
		if got := d.Message().ID; got != want {
			t.Errorf("received %q, want %q", got, want)
		}
		must(t, d.Complete(t.Context()))
	}
}

func TestMessagesAreReadableForOtherClients(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := install(t, c, "orders")
	m := sample(10)
	must(t, dispatch(c, send1(queue, m)))
	raw := rawChannel(t, url)
	ds, err := raw.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got amqp.Delivery
	select {
	case got = <-ds:
	case <-within(t).Done():
		t.Fatal("nothing came")
	}
	want := amqp.Delivery{
		MessageId:     m.ID,
		CorrelationId: m.Headers.Get(header.CorrelationID),
		ReplyTo:       "sales",
		ContentType:   "application/json",
		Type:          "Shop.Contracts.OrderPlaced",
		DeliveryMode:  amqp.Persistent,
		Headers:       amqp.Table{},
		Body:          m.Body,
	}
	for name, value := range m.Headers.All() {
		want.Headers[name] = value
	}
	got.Acknowledger, got.ConsumerTag, got.DeliveryTag, got.RoutingKey = nil, "", 0, ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("another client sees (-want +got):\n%s", diff)
	}
}

// The header is NServiceBus.RabbitMQ's way to ask for it; it does not travel.
func TestATransientMessageIsSentAndReceivedAsSuch(t *testing.T) {
	t.Parallel()
	const asked = "NServiceBus.Transport.RabbitMQ.UseNonPersistentDelivery"
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	byHeader, byProperty, overruled := message("a", "x"), message("b", "x"), message("c", "x")
	byHeader.Headers.Set(asked, "True")
	overruled.Headers.Set(asked, "True")
	property := func(m *transport.Message, mode string) transport.Operation {
		op := send1(queue, m)
		op.Properties = map[string]string{rabbitmq.PropertyDeliveryMode: mode}
		return op
	}
	must(t, dispatch(c, send1(queue, byHeader), property(byProperty, "transient"), property(overruled, "persistent")))
	r := receive(t, c, queue, 3)
	for _, want := range []string{"transient", "transient", ""} {
		d := next(t, r)
		if got := d.Message().Native[rabbitmq.PropertyDeliveryMode]; got != want {
			t.Errorf("%s came with the delivery mode %q, want %q", d.Message().ID, got, want)
		}
		if _, ok := d.Message().Headers.Lookup(asked); ok {
			t.Errorf("%s came with the header %s", d.Message().ID, asked)
		}
		must(t, d.Complete(t.Context()))
	}
}

// A full queue that refuses messages is an error of its own operation.
func TestFullQueueFailsItsOperation(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, classic)
	queue, full := install(t, c, "orders"), brokertest.Name(t, "full")
	_, err := rawChannel(t, url).QueueDeclare(full, true, false, false, false,
		amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	if err != nil {
		t.Fatal(err)
	}
	must(t, dispatch(c, send1(full, message("a", "x"))))
	err = dispatch(c, send1(queue, message("b", "x")), send1(full, message("c", "x")), send1(queue, message("d", "x")))
	var e *transport.DispatchError
	if !errors.As(err, &e) || len(e.Ops) != 1 || e.Ops[0].Index != 1 || errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("dispatch to a full queue: %v", err)
	}
}

func TestDispatchObeysItsContextWhileTheBrokerIsSilent(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	proxy := newProxy(t, url)
	c := open(t, proxy.URL(t, url), nil)
	queue := install(t, c, "orders")
	proxy.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	big := &transport.Message{ID: "big", Body: bytes.Repeat([]byte("x"), 8<<20)}
	var ops []transport.Operation
	for range 10 { // more than all buffers on the way hold
		ops = append(ops, send1(queue, big))
	}
	start := time.Now()
	_, err := c.Dispatch(ctx, ops)
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dispatch: %v", err)
	}
	proxy.Resume()
	must(t, dispatch(c, send1(queue, message("after", "x"))))
}
