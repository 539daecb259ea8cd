package sqs

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// fake is SQS as a test wants it: what is sent and deleted is noted down, and fails as scripted. It
// is for what the stand-in is lenient about, and for what AWS does only on a bad day. A method that
// is not here panics.
type fake struct {
	queueAPI

	mu       sync.Mutex        // guards what follows
	come     [][]types.Message // answers of the queue "in"
	sent     []types.SendMessageBatchRequestEntry
	deleted  []string // receipt handles
	hidden   map[string]int32
	requests map[string]int

	// The result of a request: an error for all of it, or for entries by their index, when they are
	// deleted by their receipt handle.
	onSend, onHide func(request, entries int) (failedEntries, error)
	onDelete       func(request int) (map[string]types.BatchResultErrorEntry, error)
	onReceive      func() error
	// attributes are those of every queue.
	attributes map[string]string
	// latency is how long each request lasts.
	latency time.Duration
}

func (f *fake) count(what string) int {
	if f.latency > 0 {
		<-time.After(f.latency)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.requests == nil {
		f.requests, f.hidden = map[string]int{}, map[string]int32{}
	}
	f.requests[what]++
	return f.requests[what]
}

//nolint:revive,staticcheck // the name is of the SDK
func (f *fake) GetQueueUrl(_ context.Context, in *sqs.GetQueueUrlInput, _ ...func(*sqs.Options)) (*sqs.GetQueueUrlOutput, error) {
	f.count("url")
	if *in.QueueName == "missing" {
		return nil, &types.QueueDoesNotExist{}
	}
	return &sqs.GetQueueUrlOutput{QueueUrl: aws.String("https://sqs.test/000000000000/" + *in.QueueName)}, nil
}

func (f *fake) GetQueueAttributes(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	f.count("attributes")
	return &sqs.GetQueueAttributesOutput{Attributes: f.attributes}, nil
}

func (f *fake) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	f.count("receive")
	if f.onReceive != nil {
		if err := f.onReceive(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	if len(f.come) > 0 && strings.HasSuffix(*in.QueueUrl, "/in") {
		ms := f.come[0]
		f.come = f.come[1:]
		f.mu.Unlock()
		return &sqs.ReceiveMessageOutput{Messages: ms}, nil
	}
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Duration(in.WaitTimeSeconds) * time.Second):
		return &sqs.ReceiveMessageOutput{}, nil
	}
}

func (f *fake) SendMessageBatch(_ context.Context, in *sqs.SendMessageBatchInput, _ ...func(*sqs.Options)) (*sqs.SendMessageBatchOutput, error) {
	failed, err := script(f.onSend, f.count("send"), len(in.Entries))
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, e := range in.Entries {
		if _, bad := failed[i]; !bad {
			f.sent = append(f.sent, e)
		}
	}
	return &sqs.SendMessageBatchOutput{Failed: entries(failed)}, nil
}

func (f *fake) DeleteMessageBatch(_ context.Context, in *sqs.DeleteMessageBatchInput, _ ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error) {
	request := f.count("delete")
	var failed map[string]types.BatchResultErrorEntry
	if f.onDelete != nil {
		var err error
		if failed, err = f.onDelete(request); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var bad []types.BatchResultErrorEntry
	for _, e := range in.Entries {
		if entry, ok := failed[*e.ReceiptHandle]; ok {
			entry.Id = e.Id
			bad = append(bad, entry)
			continue
		}
		f.deleted = append(f.deleted, *e.ReceiptHandle)
	}
	return &sqs.DeleteMessageBatchOutput{Failed: bad}, nil
}

func (f *fake) ChangeMessageVisibilityBatch(_ context.Context, in *sqs.ChangeMessageVisibilityBatchInput, _ ...func(*sqs.Options)) (
	*sqs.ChangeMessageVisibilityBatchOutput, error,
) {
	failed, err := script(f.onHide, f.count("hide"), len(in.Entries))
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var bad []types.BatchResultErrorEntry
	for i, e := range in.Entries {
		if entry, ok := failed[i]; ok {
			entry.Id = e.Id
			bad = append(bad, entry)
			continue
		}
		f.hidden[*e.ReceiptHandle] = e.VisibilityTimeout
	}
	return &sqs.ChangeMessageVisibilityBatchOutput{Failed: bad}, nil
}

func script(on func(int, int) (failedEntries, error), request, n int) (failedEntries, error) {
	if on == nil {
		return nil, nil
	}
	return on(request, n)
}

func entries(failed map[int]types.BatchResultErrorEntry) (all []types.BatchResultErrorEntry) {
	for i, e := range failed {
		e.Id = aws.String(strconv.Itoa(i))
		all = append(all, e)
	}
	return all
}

func entryFailure(code, message string, ours bool) types.BatchResultErrorEntry {
	return types.BatchResultErrorEntry{Code: &code, Message: &message, SenderFault: ours}
}

// comes adds answers to requests for messages. A receiver and a connection ask in the background: a
// test reads and changes a fake that is in use through its methods alone.
func (f *fake) comes(answers ...[]types.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.come = append(f.come, answers...)
}

// unreceived returns how many answers are left.
func (f *fake) unreceived() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.come)
}

// requested returns how many requests of a kind there were.
func (f *fake) requested(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[what]
}

// total returns how many requests there were, and of which kinds.
func (f *fake) total() (n int, of map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.requests {
		n += k
	}
	return n, maps.Clone(f.requests)
}

func (f *fake) sends() []types.SendMessageBatchRequestEntry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sent)
}

func (f *fake) deletions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.deleted)
}

// hides returns for how many seconds messages are hidden, by their receipt handles.
func (f *fake) hides() map[string]int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.hidden)
}

// answer is an error as the SDK makes it of an answer with this status.
func answer(status int, code string) error {
	return &smithy.OperationError{ServiceID: "SQS", OperationName: "Test", Err: &awshttp.ResponseError{
		ResponseError: &smithyhttp.ResponseError{
			Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}},
			Err:      &smithy.GenericAPIError{Code: code, Message: "as scripted"},
		},
	}}
}

// noAnswer is one of a connection that broke.
func noAnswer() error {
	return &smithy.OperationError{ServiceID: "SQS", OperationName: "Test", Err: &awshttp.ResponseError{
		ResponseError: &smithyhttp.ResponseError{
			Response: &smithyhttp.Response{Response: &http.Response{}}, // the SDK makes one up
			Err:      &smithyhttp.RequestSendError{Err: fmt.Errorf("read: connection reset by peer")},
		},
	}}
}

func openFake(t *testing.T, f *fake, change func(*Transport)) *conn {
	t.Helper()
	cfg := &Transport{}
	if change != nil {
		change(cfg)
	}
	c, err := openConn(t.Context(), cfg.withDefaults(), clients{queues: f, close: func() {}}, transport.Env{Endpoint: "in"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func openFakeReceiver(t *testing.T, c *conn) *receiver {
	t.Helper()
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "in"})
	if err != nil {
		t.Fatal(err)
	}
	return r.(*receiver)
}

// came returns the nth delivery of a message.
func came(id string, n int) types.Message {
	return cameWith(id, n, header.New(header.Field{Name: header.MessageID, Value: id}), []byte("a body"))
}

// cameAs returns the first delivery of a message of a type, with an empty JSON object.
func cameAs(id, messageType string) types.Message {
	return cameWith(id, 1, header.New(
		header.Field{Name: header.MessageID, Value: id},
		header.Field{Name: header.ContentType, Value: "application/json"},
		header.Field{Name: header.EnclosedMessageTypes, Value: messageType},
	), []byte("{}"))
}

func cameWith(id string, n int, h header.Map, body []byte) types.Message {
	return types.Message{
		MessageId: aws.String("native-" + id), ReceiptHandle: aws.String(fmt.Sprint(id, "/", n)),
		Body:       aws.String(wrap(h, body)),
		Attributes: map[string]string{receiveCount: strconv.Itoa(n), sentTimestamp: strconv.FormatInt(time.Now().UnixMilli(), 10)},
	}
}

func send(id string) transport.Operation {
	return transport.Operation{Queue: "out", Message: &transport.Message{
		ID: id, Headers: header.New(header.Field{Name: header.MessageID, Value: id}), Body: []byte("a body"),
	}}
}
