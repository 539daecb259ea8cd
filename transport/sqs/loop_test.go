package sqs_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// An endpoint whose handlers send one message each, at a concurrency of 32, beside the SDK in a
// loop that batches: go test -bench Loop -run '^$' ./transport/sqs

// order is about 200 bytes of JSON.
type order struct {
	OrderID    string    `json:"orderId"`
	CustomerID string    `json:"customerId"`
	PlacedAt   time.Time `json:"placedAt"`
	Currency   string    `json:"currency"`
	Total      float64   `json:"total"`
	Notes      string    `json:"notes"`
}

type orderDone order

// calls counts requests by their operation, until as many messages have been deleted as there are
// to be.
type calls struct {
	over     chan struct{} // closed then
	messages int

	mu      sync.Mutex // guards what follows
	left    int
	of      map[string]int
	warm    time.Time // when a fifth of the messages had been deleted
	counted int       // those deleted after that
	took    time.Duration
}

func newCalls(messages int) *calls {
	return &calls{over: make(chan struct{}), messages: messages, left: messages, of: map[string]int{}}
}

// rate is how many messages were deleted in a second, without the first fifth: an endpoint starts
// slowly on purpose.
func (c *calls) rate() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return float64(c.counted) / c.took.Seconds()
}

// config is that of a client whose requests are counted.
func (c *calls) config() *aws.Config {
	cfg := testConfig()
	cfg.APIOptions = append(cfg.APIOptions, func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("count", c.count), middleware.After)
	})
	return cfg
}

func (c *calls) count(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (
	middleware.InitializeOutput, middleware.Metadata, error,
) {
	c.mu.Lock()
	if c.left > 0 {
		c.of[awsmiddleware.GetOperationName(ctx)]++
	}
	c.mu.Unlock()
	out, metadata, err := next.HandleInitialize(ctx, in)
	if del, ok := in.Parameters.(*awssqs.DeleteMessageBatchInput); ok && err == nil {
		c.deleted(len(del.Entries))
	}
	return out, metadata, err
}

func (c *calls) deleted(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.warm.IsZero() {
		c.counted += n
		c.took = time.Since(c.warm)
	} else if c.left <= c.messages*4/5 {
		c.warm = time.Now()
	}
	if c.left -= n; c.left <= 0 && c.left > -n {
		close(c.over)
	}
}

// total is how many there were, and of what.
func (c *calls) total() (n int, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.of)) {
		n += c.of[name]
		fmt.Fprintf(&b, ", %d %s", c.of[name], name)
	}
	return n, strings.TrimPrefix(b.String(), ", ")
}

// world is two queues, the first with messages for an endpoint of its name.
type world struct {
	t       testing.TB
	url     string
	in, out string
	calls   *calls
}

func newWorld(t testing.TB, messages int) *world {
	t.Helper()
	url := brokertest.SQS(t)
	w := &world{t: t, url: url, in: brokertest.Name(t, "in"), out: brokertest.Name(t, "out"), calls: newCalls(messages)}
	c, err := at(url, false).Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var plan transport.Plan
	for _, queue := range []string{w.in, w.out, w.in + ".quarantine", w.in + ".error"} {
		plan.Queues = append(plan.Queues, transport.Queue{Name: queue})
	}
	if err := c.(transport.Installer).Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	ops := make([]transport.Operation, messages)
	for i := range ops {
		ops[i] = transport.Operation{Message: sample(), Queue: w.in}
	}
	if _, err := c.Dispatch(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	return w
}

// sample is a message as an endpoint sends it.
func sample() *transport.Message {
	id := rand.Text()
	return &transport.Message{
		ID: id,
		Headers: header.New(
			header.Field{Name: header.MessageID, Value: id},
			header.Field{Name: header.CorrelationID, Value: id},
			header.Field{Name: header.ConversationID, Value: rand.Text()},
			header.Field{Name: header.RelatedTo, Value: rand.Text()},
			header.Field{Name: header.MessageIntent, Value: "Send"},
			header.Field{Name: header.ContentType, Value: "application/json"},
			header.Field{Name: header.EnclosedMessageTypes, Value: "Bench.Order"},
			header.Field{Name: header.OriginatingEndpoint, Value: "bench"},
			header.Field{Name: header.OriginatingMachine, Value: "machine-1"},
			header.Field{Name: header.ReplyToAddress, Value: "bench"},
			header.Field{Name: header.TimeSent, Value: header.FormatTime(time.Now())},
		),
		Body: []byte(`{"orderId":"3f2b8c1e-7a54-4c0d-9d3e-1b2c3d4e5f60","customerId":"cust-000123","placedAt":"2026-01-02T03:04:05Z",` +
			`"currency":"EUR","total":129.95,"notes":"leave it at the door"}`),
	}
}

// run runs an endpoint that sends a message for each that it handles, until all are completed.
func (w *world) run(concurrency int) {
	w.t.Helper()
	broker := at(w.url, false)
	broker.Config = w.calls.config()
	cfg := endpoint.Config{
		Name: w.in, Transport: broker, Concurrency: concurrency,
		Messages: []endpoint.Message{endpoint.Command[order]("Bench.Order"), endpoint.Command[orderDone]("Bench.OrderDone").To(w.out)},
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m order) error {
			return s.Send(ctx, orderDone(m))
		})},
		Recoverability: recoverability.Config{ErrorQueue: w.in + ".error"},
		Logger:         slog.New(slog.DiscardHandler),
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	select {
	case <-w.calls.over:
		cancel()
		err = <-ended
	case err = <-ended:
		cancel()
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// raw does the same with the SDK alone: as many loops as it takes for the concurrency in tens, each
// of which receives ten messages, sends as many in one request, and deletes them in another.
func (w *world) raw(concurrency int) {
	w.t.Helper()
	c := awssqs.NewFromConfig(*w.calls.config(), func(o *awssqs.Options) {
		o.BaseEndpoint = &w.url
		o.HTTPClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	})
	in, out := w.urlOf(c, w.in), w.urlOf(c, w.out)
	ctx, cancel := context.WithCancel(w.t.Context())
	var all sync.WaitGroup
	for range (concurrency + 9) / 10 {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := rawTurn(ctx, c, in, out); err != nil && ctx.Err() == nil {
					w.t.Error(err)
					return
				}
			}
		})
	}
	<-w.calls.over
	cancel()
	all.Wait()
}

func (w *world) urlOf(c *awssqs.Client, queue string) *string {
	w.t.Helper()
	found, err := c.GetQueueUrl(w.t.Context(), &awssqs.GetQueueUrlInput{QueueName: aws.String(sanitised(queue))})
	if err != nil {
		w.t.Fatal(err)
	}
	return found.QueueUrl
}

func rawTurn(ctx context.Context, c *awssqs.Client, in, out *string) error {
	got, err := c.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
		QueueUrl: in, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{"ApproximateReceiveCount", "SentTimestamp"},
	})
	if err != nil || len(got.Messages) == 0 {
		return err
	}
	send := &awssqs.SendMessageBatchInput{QueueUrl: out}
	del := &awssqs.DeleteMessageBatchInput{QueueUrl: in}
	for i, m := range got.Messages {
		id := aws.String(strconv.Itoa(i))
		send.Entries = append(send.Entries, types.SendMessageBatchRequestEntry{Id: id, MessageBody: m.Body})
		del.Entries = append(del.Entries, types.DeleteMessageBatchRequestEntry{Id: id, ReceiptHandle: m.ReceiptHandle})
	}
	if _, err := c.SendMessageBatch(ctx, send); err != nil {
		return err
	}
	_, err = c.DeleteMessageBatch(ctx, del)
	return err
}

func BenchmarkLoop(b *testing.B) {
	for _, c := range []int{1, 32, 100} {
		for name, run := range map[string]func(*world, int){"endpoint": (*world).run, "raw": (*world).raw} {
			b.Run(fmt.Sprintf("%s/c%d", name, c), func(b *testing.B) {
				w := newWorld(b, b.N)
				b.ResetTimer()
				run(w, c)
				b.ReportMetric(w.calls.rate(), "msg/s")
				n, _ := w.calls.total()
				b.ReportMetric(float64(n)/float64(b.N)*1000, "requests/1000")
			})
		}
	}
}
