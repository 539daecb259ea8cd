package brokertest_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// bus is a namespace with a client of the SDK.
type bus struct {
	*testing.T
	*brokertest.ServiceBusNamespace
	ctx    context.Context //nolint:containedctx // the test's, for its helpers
	client *azservicebus.Client
	admin  *admin.Client
}

func newBus(t *testing.T) *bus {
	t.Helper()
	t.Parallel()
	n := brokertest.ServiceBus(t)
	if n.Control != nil { // elsewhere its state cannot be read
		t.Cleanup(func() {
			if left := n.Control.State().Entities; left > 0 {
				t.Errorf("%d queues and topics are left", left)
			}
		})
	}
	return busOn(t, n)
}

// ownBus returns a bus of the stand-in, which can be made to fail.
func ownBus(t *testing.T) *bus {
	t.Helper()
	t.Parallel()
	return busOn(t, brokertest.OwnServiceBus(t))
}

// azureBus is ownBus with the profile of the service.
func azureBus(t *testing.T) *bus {
	t.Helper()
	t.Parallel()
	return busOn(t, brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure))
}

func busOn(t *testing.T, n *brokertest.ServiceBusNamespace) *bus {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	b := &bus{T: t, ServiceBusNamespace: n, ctx: ctx}
	b.client, b.admin = b.dial(n.ConnectionString)
	return b
}

// dial connects another client.
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

// host returns the namespace's host and port.
func (b *bus) host() string {
	host, _, _ := strings.Cut(strings.TrimPrefix(b.ConnectionString, "Endpoint=sb://"), ";")
	return host
}

func (b *bus) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// queue creates a queue and returns its name.
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

// receive waits for one message. After a lost connection the SDK returns none, and no error.
func (b *bus) receive(r *azservicebus.Receiver) *azservicebus.ReceivedMessage {
	b.Helper()
	for {
		messages, err := r.ReceiveMessages(b.ctx, 1, nil)
		b.must(err)
		if len(messages) > 0 {
			return messages[0]
		}
	}
}

func text(s string) azservicebus.Message { return azservicebus.Message{Body: []byte(s)} }

// complete receives a message of a queue and completes it.
func (b *bus) complete(queue string) *azservicebus.ReceivedMessage {
	b.Helper()
	r := b.receiver(queue)
	m := b.receive(r)
	b.must(r.CompleteMessage(b.ctx, m, nil))
	b.must(r.Close(b.ctx))
	return m
}

// nothing fails the test if a message comes.
func (b *bus) nothing(r *azservicebus.Receiver) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
	defer cancel()
	messages, err := r.ReceiveMessages(ctx, 1, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		b.Fatalf("got %d messages and error %v, want none", len(messages), err)
	}
}

// wait returns when d has passed by the broker's clock: a message arrives then.
func (b *bus) wait(d time.Duration) {
	b.Helper()
	q := b.queue(admin.QueueProperties{})
	at := time.Now().Add(d + time.Millisecond) // AMQP has milliseconds
	b.send(q, azservicebus.Message{Body: []byte("now"), ScheduledEnqueueTime: &at})
	b.complete(q)
}

// lost fails the test unless err is that of a lost lock.
func (b *bus) lost(err error) {
	b.Helper()
	b.code(err, azservicebus.CodeLockLost)
}

func (b *bus) code(err error, want azservicebus.Code) {
	b.Helper()
	var is *azservicebus.Error
	if !errors.As(err, &is) || is.Code != want {
		b.Errorf("got %v, want %s", err, want)
	}
}

// brief returns a short lock duration.
func (b *bus) brief() *string {
	return to.Ptr("PT" + strconv.Itoa(int(b.ShortLock(time.Second).Seconds())) + "S")
}

// onManagement returns a message to be settled by $management, as after the loss of its link.
func onManagement(m *azservicebus.ReceivedMessage) *azservicebus.ReceivedMessage {
	other := *m
	other.RawAMQPMessage = nil
	return &other
}

// deadLetters receives from the dead letters of a queue.
func (b *bus) deadLetters(queue string) *azservicebus.Receiver {
	b.Helper()
	r, err := b.client.NewReceiverForQueue(queue, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter})
	b.must(err)
	return r
}

func bodies(messages []*azservicebus.ReceivedMessage) []string {
	var all []string
	for _, m := range messages {
		all = append(all, string(m.Body))
	}
	return all
}

func (b *bus) equal(got, want any) {
	b.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		b.Errorf("(-want +got):\n%s", diff)
	}
}

// of returns the value of a property, the zero value if the broker left it out.
func of[T any](property *T) (value T) {
	if property != nil {
		value = *property
	}
	return value
}

// one returns the only message of an answer.
func (b *bus) one(messages []*azservicebus.ReceivedMessage, err error) *azservicebus.ReceivedMessage {
	b.Helper()
	b.must(err)
	if len(messages) != 1 {
		b.Fatalf("got %d messages, want 1", len(messages))
	}
	return messages[0]
}

func farAway() time.Time { return time.Now().Add(time.Hour) }
