package baddays_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// sqsDays are the rows under "Amazon SQS" in docs/bad-days.md. Each day has a file of its own.
var sqsDays = []day{
	{name: "AWS throttles the start", run: sqsThrottledStart},
	{name: "KMS throttles, then denies", run: sqsKMS},
	{name: "A message of 800 KB fails", run: sqsLargeFailure},
	{name: "The error queue takes 256 KiB", run: sqsSmallErrorQueue},
	{name: "Only the documented rights", run: sqsRights},
}

func TestChaosDaysOfSQS(t *testing.T) { runDays(t, "Amazon SQS", sqsDays) }

// sqsJob is the message of these days.
type sqsJob struct{ N int }

const sqsPatience = 2 * time.Minute

// account is a region of AWS with the queues of an endpoint "sales", of which names have a prefix
// of their own.
type account struct {
	t      *testing.T
	front  *brokertest.SQSFront
	prefix string
	tr     *sqs.Transport // of the endpoint: its requests may be refused
	conn   transport.Conn // of the test: its requests are not
	client *awssqs.Client

	mu   sync.Mutex
	runs map[int]int // handler runs by message
}

func newAccount(t *testing.T) *account {
	t.Helper()
	broker := brokertest.SQS(t)
	prefix := strings.ToLower(rand.Text()[:8]) + "-"
	cfg := &aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")}
	at := func(endpoint string) *sqs.Transport {
		return &sqs.Transport{Endpoint: endpoint, Config: cfg, QueuePrefix: prefix, TopicPrefix: prefix}
	}
	a := &account{t: t, front: brokertest.NewSQSFront(t, broker), prefix: prefix, runs: map[int]int{}}
	a.tr = at(a.front.URL)
	a.client = awssqs.NewFromConfig(*cfg, func(o *awssqs.Options) { o.BaseEndpoint = &broker })
	c, err := at(broker).Open(t.Context(), transport.Env{Endpoint: "sales"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	a.conn = c
	return a
}

// install creates the queues and the topic of "Shop.Job".
func (a *account) install() {
	a.t.Helper()
	err := a.conn.(transport.Installer).Install(a.t.Context(), transport.Plan{
		Queues: []transport.Queue{
			{Name: "sales"}, {Name: "sales.quarantine", Counted: true}, {Name: "billing"}, {Name: "error", Shared: true}, {Name: "audit", Shared: true},
		},
		Types: [][]string{{"Shop.Job"}}, Delays: true,
	})
	if err != nil {
		a.t.Fatal(err)
	}
}

// run runs the endpoint until the test ends. It does not wait until it is ready.
func (a *account) run(change func(*endpoint.Config), handle func(context.Context, *endpoint.Session, sqsJob) error) *endpoint.Endpoint {
	a.t.Helper()
	counted := func(ctx context.Context, s *endpoint.Session, m sqsJob) error {
		a.mu.Lock()
		a.runs[m.N]++
		a.mu.Unlock()
		return handle(ctx, s, m)
	}
	cfg := endpoint.Config{
		Name: "sales", Transport: a.tr, Concurrency: 16, Logger: slog.New(slog.DiscardHandler), Instance: "one",
		Messages: []endpoint.Message{endpoint.Command[sqsJob]("Shop.Job")},
		Handlers: []endpoint.Handler{endpoint.Handle(counted)},
	}
	change(&cfg)
	e, err := endpoint.New(cfg)
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	a.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			a.t.Error(err)
		}
	})
	return e
}

// attempts are the handler runs of a message.
func (a *account) attempts(n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs[n]
}

// until waits for something, and returns how long that took.
func (a *account) until(what string, done func() bool) time.Duration {
	a.t.Helper()
	began := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		if time.Since(began) > sqsPatience {
			a.t.Fatalf("%s: not within %v", what, sqsPatience)
		}
		<-tick.C
	}
	return time.Since(began)
}

// depth is how many messages a queue has, those that are being handled included.
func (a *account) depth(queue string) int {
	a.t.Helper()
	stats, err := a.conn.(transport.Inspector).Inspect(a.t.Context(), queue)
	if err != nil {
		a.t.Fatal(err)
	}
	return int(stats[0].Ready + stats[0].Unsettled)
}

// send sends jobs to a queue of the endpoint.
func (a *account) send(queue string, numbers ...int) {
	a.t.Helper()
	ops := make([]transport.Operation, len(numbers))
	for i, n := range numbers {
		id := fmt.Sprint("m-", n)
		ops[i] = transport.Operation{Queue: queue, Message: &transport.Message{
			ID: id, Body: fmt.Appendf(nil, `{"N":%d}`, n), Headers: header.New(
				header.Field{Name: header.MessageID, Value: id},
				header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.Job"},
				header.Field{Name: header.ContentType, Value: "application/json"},
			),
		}}
	}
	if _, err := a.conn.Dispatch(a.t.Context(), ops); err != nil {
		a.t.Fatal(err)
	}
}

// put sends a message as another producer does, of size bytes.
func (a *account) put(queue string, n, size int) (body string) {
	a.t.Helper()
	body = fmt.Sprintf(`{"N":%d,"Padding":"%s"}`, n, strings.Repeat("x", size))
	_, err := a.client.SendMessage(a.t.Context(), &awssqs.SendMessageInput{
		QueueUrl: a.url(queue), MessageBody: &body,
		MessageAttributes: map[string]types.MessageAttributeValue{
			"MessageTypeFullName": {DataType: aws.String("String"), StringValue: aws.String("Shop.Job")},
		},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return body
}

func (a *account) url(queue string) *string {
	a.t.Helper()
	name := a.prefix + strings.ReplaceAll(queue, ".", "-")
	found, err := a.client.GetQueueUrl(a.t.Context(), &awssqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		a.t.Fatal(err)
	}
	return found.QueueUrl
}

// failed takes n messages from the error queue, by their bodies.
func (a *account) failed(n int) map[string]header.Map {
	a.t.Helper()
	r, err := a.conn.OpenReceiver(a.t.Context(), transport.ReceiverOptions{Queue: "error"})
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), sqsPatience)
	defer cancel()
	found := map[string]header.Map{}
	for len(found) < n {
		ds, err := r.Receive(ctx, 10)
		if err != nil {
			a.t.Fatalf("%d of %d messages came to the error queue: %v", len(found), n, err)
		}
		for _, d := range ds {
			found[string(d.Message().Body)] = d.Message().Headers
			err = errors.Join(err, d.Complete(ctx))
		}
		if err != nil {
			a.t.Error(err)
		}
	}
	if err := r.Close(); err != nil {
		a.t.Error(err)
	}
	return found
}
