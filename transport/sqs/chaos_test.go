package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// chaos is an AWS on its worst day: of the requests, some are refused, some are carried out though
// the answer says otherwise, of batches some entries fail, and messages come twice.
type chaos struct {
	mu     sync.Mutex // guards what follows
	random *rand.Rand
	on     bool
	past   []types.Message // that have been received
	done   map[string]int  // of each evil
}

// roll reports whether a fault with that percentage happens to this request.
func (c *chaos) roll(evil string, percent int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on || c.random.IntN(100) >= percent {
		return false
	}
	c.done[evil]++
	return true
}

func (c *chaos) config() *aws.Config {
	cfg := testConfig()
	cfg.APIOptions = append(cfg.APIOptions, func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("chaos", c.befall), middleware.After)
	})
	return cfg
}

func (c *chaos) befall(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (
	out middleware.InitializeOutput, metadata middleware.Metadata, err error,
) {
	switch {
	case c.roll("throttled", 4):
		return out, metadata, refusal(400, "RequestThrottled")
	case c.roll("expired credentials", 2):
		return out, metadata, refusal(403, "ExpiredToken")
	case c.roll("unavailable", 2):
		return out, metadata, refusal(503, "ServiceUnavailable")
	}
	left := c.leaveOut(in.Parameters)
	if out, metadata, err = next.HandleInitialize(ctx, in); err != nil {
		return out, metadata, err
	}
	switch {
	case c.roll("done, but a server error", 2):
		return out, metadata, refusal(500, "InternalError")
	case c.roll("done, but no answer", 2):
		return out, metadata, &smithyhttp.RequestSendError{Err: errors.New("connection reset by peer")}
	}
	c.addFailures(out.Result, left)
	return out, metadata, nil
}

func refusal(status int, code string) error {
	return &smithy.OperationError{ServiceID: "SQS", OperationName: "Chaos", Err: &awshttp.ResponseError{ResponseError: &smithyhttp.ResponseError{
		Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}},
		Err:      &smithy.GenericAPIError{Code: code, Message: "as the chaos will have it"},
	}}}
}

// leaveOut takes an entry out of a batch and returns its id, in one of ten.
func (c *chaos) leaveOut(parameters any) *string {
	const evil, percent = "entry failed", 10
	switch in := parameters.(type) {
	case *awssqs.SendMessageBatchInput:
		if len(in.Entries) > 1 && c.roll(evil, percent) {
			id := in.Entries[0].Id
			in.Entries = slices.Clone(in.Entries[1:])
			return id
		}
	case *awssqs.DeleteMessageBatchInput:
		if len(in.Entries) > 1 && c.roll(evil, percent) {
			id := in.Entries[0].Id
			in.Entries = slices.Clone(in.Entries[1:])
			return id
		}
	}
	return nil
}

// addFailures says that an entry failed which was left out, or in one of ten which was not, and has
// messages come twice.
func (c *chaos) addFailures(result any, left *string) {
	failure := types.BatchResultErrorEntry{Id: left, Code: aws.String("InternalError"), Message: aws.String("try again")}
	switch out := result.(type) {
	case *awssqs.SendMessageBatchOutput:
		if left == nil && len(out.Successful) > 1 && c.roll("entry done, but said to have failed", 5) {
			failure.Id = out.Successful[0].Id
		}
		if failure.Id != nil {
			out.Failed = append(out.Failed, failure)
		}
	case *awssqs.DeleteMessageBatchOutput:
		if left == nil && len(out.Successful) > 1 && c.roll("entry done, but said to have failed", 5) {
			failure.Id = out.Successful[0].Id
		}
		if failure.Id != nil {
			out.Failed = append(out.Failed, failure)
		}
	case *awssqs.ReceiveMessageOutput:
		c.comeTwice(out)
	}
}

// comeTwice has a message come once more that came before.
func (c *chaos) comeTwice(out *awssqs.ReceiveMessageOutput) {
	again := len(out.Messages) > 0 && len(out.Messages) < 10 && c.roll("came twice", 20)
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := out.Messages
	if again && len(c.past) > 0 {
		out.Messages = append(slices.Clone(fresh), c.past[c.random.IntN(len(c.past))])
	}
	c.past = append(c.past, fresh...)
}

func (c *chaos) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = false
}

// Refused requests, requests carried out without an answer, failed entries and second deliveries
// lose no message.
func TestChaosWorstDayOfAWS(t *testing.T) {
	t.Parallel()
	messages := 200
	if brokertest.Fault(t) {
		messages = 600
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := &chaos{random: rand.New(rand.NewPCG(seed, 2)), on: true, done: map[string]int{}}
	url := brokertest.SQS(t)
	in, out := brokertest.Name(t, "in"), brokertest.Name(t, "out")
	plain, err := at(url, false).Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	var plan transport.Plan
	for _, queue := range []string{in, out, in + ".quarantine", in + ".error"} {
		plan.Queues = append(plan.Queues, transport.Queue{Name: queue})
	}
	if err := plain.(transport.Installer).Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	ops := make([]transport.Operation, messages)
	want := map[string]bool{}
	for i := range ops {
		ops[i] = transport.Operation{Message: sample(), Queue: in}
		want[ops[i].Message.ID] = true
	}
	if _, err := plain.Dispatch(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	broker := at(url, false)
	broker.Config, broker.Lease = c.config(), 3*time.Second
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	e := forwarding(t, broker, in, out)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, e) }()
	came := collect(t, plain, out, want)
	c.end()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	t.Logf("%d messages, %d copies; %v", messages, came-messages, c.done)
}

// run runs an endpoint that finds AWS as it is, and starts again if that keeps it from starting.
func run(ctx context.Context, e func() (*endpoint.Endpoint, error)) error {
	for {
		own, err := e()
		if err != nil {
			return err
		}
		err = own.Run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !strings.Contains(fmt.Sprint(err), "chaos") && !strings.Contains(fmt.Sprint(err), "connection reset") {
			return fmt.Errorf("the endpoint ended: %w", err)
		}
	}
}

// forwarding makes an endpoint that sends a message for each, under its id.
func forwarding(t *testing.T, broker transport.Transport, in, out string) func() (*endpoint.Endpoint, error) {
	t.Helper()
	return func() (*endpoint.Endpoint, error) {
		return endpoint.New(endpoint.Config{
			Name: in, Transport: broker, Concurrency: 16,
			Messages: []endpoint.Message{endpoint.Command[order]("Bench.Order"), endpoint.Command[orderDone]("Bench.OrderDone").To(out)},
			Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m order) error {
				return s.Send(ctx, orderDone(m), endpoint.MessageID(s.MessageID()))
			})},
			Recoverability: recoverability.Config{ErrorQueue: in + ".error", Immediate: 50},
			Logger:         slog.New(slog.DiscardHandler),
		})
	}
}

// collect receives until each of the wanted messages has come, and returns how many came.
func collect(t *testing.T, c transport.Conn, queue string, want map[string]bool) (came int) {
	t.Helper()
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(want) > 0 {
		ds, err := r.Receive(ctx, 10)
		if err != nil {
			t.Fatalf("%d messages are missing: %v", len(want), err)
		}
		for _, d := range ds {
			came++
			delete(want, d.Message().ID)
			if err := d.Complete(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	return came
}
