package brokertest_test

import (
	"context"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// bus is a namespace with a client of the SDK.
type bus struct {
	*testing.T
	*brokertest.ServiceBusNamespace
	ctx    context.Context
	client *azservicebus.Client
	admin  *admin.Client
}

func newBus(t *testing.T) *bus {
	t.Helper()
	t.Parallel()
	return busOn(t, brokertest.ServiceBus(t))
}

// ownBus is one that can be made to fail.
func ownBus(t *testing.T) *bus {
	t.Helper()
	t.Parallel()
	return busOn(t, brokertest.OwnServiceBus(t))
}

func busOn(t *testing.T, n *brokertest.ServiceBusNamespace) *bus {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	b := &bus{T: t, ServiceBusNamespace: n, ctx: ctx}
	b.client, b.admin = b.dial(n.ConnectionString)
	return b
}

// dial connects as somebody else.
func (b *bus) dial(connection string) (*azservicebus.Client, *admin.Client) {
	b.Helper()
	client, err := azservicebus.NewClientFromConnectionString(connection, &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{MaxRetries: 3, RetryDelay: 10 * time.Millisecond, MaxRetryDelay: 50 * time.Millisecond},
	})
	b.must(err)
	b.Cleanup(func() { _ = client.Close(context.Background()) })
	options := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: b.AdminTransport()}}
	options.Retry.MaxRetries = -1
	managing, err := admin.NewClientFromConnectionString(connection, options)
	b.must(err)
	return client, managing
}

func (b *bus) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// queue makes a queue and returns its name.
func (b *bus) queue(properties admin.QueueProperties) string {
	b.Helper()
	name := brokertest.Name(b.T, "queue")
	_, err := b.admin.CreateQueue(b.ctx, name, &admin.CreateQueueOptions{Properties: &properties})
	b.must(err)
	b.Cleanup(func() { _, _ = b.admin.DeleteQueue(context.Background(), name, nil) })
	return name
}

func (b *bus) sender(entity string) *azservicebus.Sender {
	b.Helper()
	s, err := b.client.NewSender(entity, nil)
	b.must(err)
	return s
}

func (b *bus) receiver(queue string) *azservicebus.Receiver {
	b.Helper()
	r, err := b.client.NewReceiverForQueue(queue, nil)
	b.must(err)
	return r
}

func (b *bus) send(entity string, messages ...azservicebus.Message) {
	b.Helper()
	s := b.sender(entity)
	for _, m := range messages {
		b.must(s.SendMessage(b.ctx, &m, nil))
	}
}

// receive waits for one message.
func (b *bus) receive(r *azservicebus.Receiver) *azservicebus.ReceivedMessage {
	b.Helper()
	messages, err := r.ReceiveMessages(b.ctx, 1, nil)
	b.must(err)
	return messages[0]
}

func text(s string) azservicebus.Message { return azservicebus.Message{Body: []byte(s)} }

func TestServiceBusSendsAndCompletes(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("hello"))
	r := b.receiver(q)
	m := b.receive(r)
	if string(m.Body) != "hello" || m.DeliveryCount != 1 {
		t.Errorf("got %q at delivery %d", m.Body, m.DeliveryCount)
	}
	b.must(r.CompleteMessage(b.ctx, m, nil))
}
