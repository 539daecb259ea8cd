package sqs_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// log is a log whose lines a test waits for.
type log struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote chan struct{}
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		select {
		case l.wrote <- struct{}{}:
		default:
		}
	}()
	return l.text.Write(b)
}

// wait returns the log as soon as it has a text.
func (l *log) wait(t *testing.T, want string) string {
	t.Helper()
	late := time.After(patience)
	for {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		if strings.Contains(text, want) {
			return text
		}
		select {
		case <-l.wrote:
		case <-late:
			t.Fatalf("the log does not say %q: %s", want, text)
		}
	}
}

func TestAnEndpointLooksAtItsQueuesAtStart(t *testing.T) {
	t.Parallel()
	broker := brokertest.SQS(t)
	queue := brokertest.Name(t, "sales")
	lines := &log{wrote: make(chan struct{}, 1)}
	c, err := at(broker, false).Open(t.Context(), transport.Env{Endpoint: queue, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	must(t, err)
	defer func() { must(t, c.Close()) }()
	_, err = c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	if !errors.Is(err, transport.ErrNoQueue) || !strings.Contains(err.Error(), `in region "eu-central-1" of account "`) {
		t.Errorf("%v, want ErrNoQueue with region and account", err)
	}
	install(t, c.(transport.Installer), transport.Plan{Queues: []transport.Queue{{Name: queue}}})
	limitDeliveries(t, broker, queue, 3)
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	must(t, err)
	lines.wait(t, "maxReceiveCount=3")
	for range 2 {
		put(t, broker, queue, `{"Type":"Notification","TopicArn":"arn:aws:sns:eu-central-1:123456789012:Shop-Placed","Message":"{}"}`, nil)
		ds, err := r.Receive(t.Context(), 1)
		must(t, err)
		must(t, ds[0].Complete(context.WithoutCancel(t.Context())))
	}
	text := lines.wait(t, "RawMessageDelivery")
	if n := strings.Count(text, "topic=Shop-Placed"); n != 1 {
		t.Errorf("%d warnings of one topic: %s", n, text)
	}
}

// A FIFO queue that exists is refused even when nothing is installed.
func TestAFIFOQueueIsNotReceivedFrom(t *testing.T) {
	t.Parallel()
	broker := brokertest.SQS(t)
	queue := brokertest.Name(t, "sales")
	c := open(t, at(broker, false), "")
	install(t, c, transport.Plan{Delays: true, Queues: []transport.Queue{{Name: queue}}})
	_, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue + "-delay.fifo"})
	must(t, err) // the driver receives from these itself
	createFIFO(t, broker, sanitised(queue)+".fifo")
	_, err = c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue + ".fifo"})
	if err == nil || !strings.Contains(err.Error(), "FIFO queues cannot be received from") {
		t.Errorf("%v, want a refusal of FIFO queues", err)
	}
}

func createFIFO(t *testing.T, broker, name string) {
	t.Helper()
	_, err := client(broker).CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: map[string]string{"FifoQueue": "true"}})
	must(t, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
