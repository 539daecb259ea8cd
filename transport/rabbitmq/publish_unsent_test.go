package rabbitmq

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// opened is a conn of the endpoint "test", by way of the URL.
func opened(t *testing.T, broker string) *conn {
	t.Helper()
	c, err := (&Transport{URL: broker}).Open(t.Context(), transport.Env{Endpoint: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*conn)
}

// openedThroughProxy returns a conn whose connections can be cut.
func openedThroughProxy(t *testing.T) (*conn, *brokertest.Proxy) {
	t.Helper()
	broker := brokertest.RabbitMQ(t)
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	proxy := brokertest.NewProxy(t, u.Host)
	return opened(t, proxy.URL(t, broker)), proxy
}

// installed is a queue of that name.
func installed(t *testing.T, c *conn, name string) string {
	t.Helper()
	name = brokertest.Name(t, name)
	if err := c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: name}}}); err != nil {
		t.Fatal(err)
	}
	return name
}

// each is a send, a delayed one and two publishes.
func each(queue string) []transport.Operation {
	m := &transport.Message{ID: "m-1", Body: []byte("x")}
	return []transport.Operation{
		{Message: m, Queue: queue},
		{Message: m, Queue: queue, After: time.Minute},
		{Message: m, Types: []string{"Shop.OrderPlaced"}},
		{Message: m, Types: []string{"Shop.OrderPlaced"}, After: time.Minute},
	}
}

// unreached are the indexes of the operations that failed because nothing could be sent.
func unreached(err error) (ops []int) {
	var failed *transport.DispatchError
	if errors.As(err, &failed) {
		for _, op := range failed.Ops {
			if errors.Is(op.Err, transport.ErrUnreachable) {
				ops = append(ops, op.Index)
			}
		}
	}
	return ops
}

func TestSendsWithoutAConnectionAreUnreachable(t *testing.T) {
	t.Parallel()
	c, proxy := openedThroughProxy(t)
	queue := installed(t, c, "orders")
	proxy.Refuse()
	var err error
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for len(unreached(err)) != len(each(queue)) { // the first may have an outcome that is not known
		if ctx.Err() != nil {
			t.Fatalf("only operations %d are said to be unsent: %v", unreached(err), err)
		}
		_, err = c.Dispatch(ctx, each(queue))
	}
}

// Delays and publishes need the other connection too, to make sure of the way.
func TestDeclarationsWithoutAConnectionAreUnreachable(t *testing.T) {
	t.Parallel()
	c := opened(t, brokertest.RabbitMQ(t))
	queue := installed(t, c, "orders")
	in, _, _ := c.receiving.now()
	c.receiving.set(nil, errors.New("not connected"))
	_, err := c.Dispatch(t.Context(), each(queue))
	c.receiving.set(in, nil)
	if got := unreached(err); len(got) != 3 || got[0] != 1 {
		t.Errorf("operations %d are said to be unsent, want all but the first: %v", got, err)
	}
}

func TestRefusalsOfTheBrokerAreNotUnreachable(t *testing.T) {
	t.Parallel()
	c := opened(t, brokertest.RabbitMQ(t))
	queue := installed(t, c, "orders")
	err := c.onChannel(t.Context(), func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("Shop:OrderPlaced", amqp.ExchangeTopic, true, false, false, false, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Dispatch(t.Context(), each(queue))
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Ops) != 2 || len(unreached(err)) > 0 {
		t.Errorf("dispatch: %v", err)
	}
}

// Requests that outlast a Dispatch use the values of its caller at the time of the call.
func TestAnOperationIsNotReadAfterItsDispatch(t *testing.T) {
	t.Parallel()
	c, proxy := openedThroughProxy(t)
	queue, other := installed(t, c, "orders"), installed(t, c, "others")
	m := &transport.Message{ID: "m-1", Body: []byte("x")}
	if _, err := c.Dispatch(t.Context(), []transport.Operation{{Message: m, Queue: other, After: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, test := range []struct {
		op    transport.Operation
		ready func(*amqp.Channel) error
	}{
		{transport.Operation{Message: m, Queue: queue, After: time.Minute}, func(ch *amqp.Channel) error {
			err := ch.PublishWithContext(ctx, delayArrivals, delays.Key(1, queueTarget(queue).relayed()), false, false, amqp.Publishing{})
			found, err2 := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
			if found.Messages == 0 {
				err2 = errors.New("nothing arrives")
			}
			return errors.Join(err, err2)
		}},
		{transport.Operation{Message: m, Types: []string{"Shop.OrderPlaced", "Shop.IOrderEvent"}}, func(ch *amqp.Channel) error {
			return c.topology.forTypes([]string{"Shop.IOrderEvent"})[0].find(ch)
		}},
	} {
		proxy.Pause()
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		ops := []transport.Operation{test.op}
		if _, err := c.Dispatch(soon, ops); len(unreached(err)) != 1 {
			t.Errorf("dispatch without an answer: %v", err)
		}
		cancel()
		ops[0].Queue = other
		clear(ops[0].Types)
		proxy.Resume()
		for err := c.onChannel(ctx, test.ready); err != nil; err = c.onChannel(ctx, test.ready) {
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
}
