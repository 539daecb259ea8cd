package sqs

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/transport"
)

// account is an AWS account as the parts of a conn use it: requests, and the addresses of queues and
// topics. It has no connection of its own: each request takes one of the HTTP client's pool.
type account struct {
	cfg      Transport // with defaults
	endpoint string    // name of the endpoint; "" for tools
	instance string
	log      *slog.Logger
	clients

	ctx     context.Context //nolint:containedctx // of the conn's goroutines; ends with Close
	cancel  context.CancelFunc
	closing atomic.Bool
	tasks   goroutines.Group

	urls      cache[string]          // of queues
	topicsARN atomic.Pointer[string] // see topicARNs
	location  cache[string]          // under "": region and account
}

func (a *account) closed() bool { return a.closing.Load() }

// requestTimeout bounds a request with the SDK's repetitions, except polls.
const requestTimeout = 15 * time.Second

// request returns a context for one request. It ends with ctx, with the conn, and after
// requestTimeout.
func (a *account) request(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	stop := context.AfterFunc(a.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// call sends one request of a client.
func call[In, Out, Options any](
	ctx context.Context, a *account, method func(context.Context, *In, ...func(*Options)) (*Out, error), in *In,
) (*Out, error) {
	ctx, cancel := a.request(ctx)
	defer cancel()
	return method(ctx, in)
}

// queueURL returns the URL of a queue. It fails with ErrNoQueue if there is none, which is not
// cached.
func (a *account) queueURL(ctx context.Context, queue string) (string, error) {
	if a.closed() {
		return "", transport.ErrClosed
	}
	if url, ok := a.urls.get(queue); ok {
		return url, nil
	}
	name, err := queueName(a.cfg.QueuePrefix, queue)
	if err != nil {
		return "", err
	}
	out, err := call(ctx, a, a.queues.GetQueueUrl, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return "", a.fault(err, "look for queue %q", queue)
	}
	a.urls.set(queue, *out.QueueUrl)
	return *out.QueueUrl, nil
}

// topicARN returns the ARN of the topic of a message type, whether it exists or not. ARNs are made
// of region, account and name, so no request looks for them.
func (a *account) topicARN(ctx context.Context, messageType string) (string, error) {
	name, err := topicName(a.cfg.TopicPrefix, messageType)
	if err != nil {
		return "", err
	}
	topics, err := a.topicARNs(ctx)
	return topics + name, err
}

// topicARNs returns the prefix of the ARNs of the account's topics, such as
// "arn:aws:sns:eu-central-1:123456789012:".
func (a *account) topicARNs(ctx context.Context) (string, error) {
	if topics := a.topicsARN.Load(); topics != nil {
		return *topics, nil
	}
	topics, err := a.findTopics(ctx)
	if err == nil {
		a.topicsARN.Store(&topics)
	}
	return topics, err
}

// findTopics reads the account from the ARN of the endpoint's queue or, if that is missing, from
// STS, which needs no right but is not reachable from every network.
func (a *account) findTopics(ctx context.Context) (string, error) {
	var missing error
	if a.endpoint != "" {
		queue, err := a.queueARN(ctx, a.endpoint)
		parts := strings.SplitN(queue, ":", 6)
		switch {
		case err == nil && len(parts) == 6:
			return fmt.Sprintf("arn:%s:sns:%s:%s:", parts[1], parts[3], parts[4]), nil
		case err == nil:
			return "", fmt.Errorf("sqs: %q is not the ARN of a queue", queue)
		case !errors.Is(err, transport.ErrNoQueue):
			missing = err
		}
	}
	who, err := call(ctx, a, a.identity, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "", a.fault(errors.Join(err, missing), "find out which account this is, for the names of topics")
	}
	partition, _, _ := strings.Cut(strings.TrimPrefix(value(who.Arn), "arn:"), ":")
	return fmt.Sprintf("arn:%s:sns:%s:%s:", partition, a.region, value(who.Account)), nil
}

// queueARN returns the ARN of a queue. It fails with ErrNoQueue if there is none.
func (a *account) queueARN(ctx context.Context, queue string) (string, error) {
	return a.queueAttribute(ctx, queue, types.QueueAttributeNameQueueArn)
}

func (a *account) queueAttribute(
	ctx context.Context, queue string, name types.QueueAttributeName,
) (string, error) {
	attributes, err := a.queueAttributes(ctx, queue, name)
	return attributes[string(name)], err
}

func (a *account) topicAttribute(ctx context.Context, arn, name string) (string, error) {
	out, err := call(ctx, a, a.topics.GetTopicAttributes, &sns.GetTopicAttributesInput{TopicArn: &arn})
	if err != nil {
		return "", a.fault(err, "look at topic %q", nameOf(arn))
	}
	return out.Attributes[name], nil
}

func (a *account) queueAttributes(
	ctx context.Context, queue string, names ...types.QueueAttributeName,
) (map[string]string, error) {
	url, err := a.queueURL(ctx, queue)
	if err != nil {
		return nil, err
	}
	in := &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: names}
	out, err := call(ctx, a, a.queues.GetQueueAttributes, in)
	if err != nil {
		if hasCode(err, noQueueCodes) {
			a.urls.forget(queue)
		}
		return nil, a.fault(err, "look at queue %q", queue)
	}
	return out.Attributes, nil
}

var _ transport.Addresser = (*conn)(nil)

// Address implements [transport.Addresser]: the queue's name at SQS, with the prefix.
func (a *account) Address(queue string) string {
	name, err := queueName(a.cfg.QueuePrefix, queue)
	if err != nil {
		return queue
	}
	return name
}

// ShortName implements [transport.Addresser]: the queue's name at SQS without the prefix.
func (a *account) ShortName(address string) string { return shortName(a.cfg.QueuePrefix, address) }

// shortName returns the name at SQS of the queue of an address without the prefix; with it, where
// the rest of the name would be read as another queue, because it begins with the prefix again.
func shortName(prefix, address string) string {
	if isClean(prefix) && isClean(address) && !strings.HasPrefix(address, prefix) && len(prefix)+len(address) <= longestQueue {
		return address // the usual case, without an allocation
	}
	name, err := queueName(prefix, address)
	if err != nil {
		return address
	}
	clean, _ := sanitize(prefix) // queueName has done so
	short := strings.TrimPrefix(name, clean)
	if again, err := queueName(prefix, short); err != nil || again != name {
		return name
	}
	return short
}

// cache keeps values by name. The zero value is ready, and safe for concurrent use.
type cache[V any] struct {
	age time.Duration // for which a value is kept; 0 is forever

	mu    sync.Mutex // guards known
	known map[string]cached[V]
}

type cached[V any] struct {
	value V
	since time.Time
}

func (c *cache[V]) get(name string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.known[name]
	return known.value, ok && (c.age == 0 || time.Since(known.since) < c.age)
}

func (c *cache[V]) set(name string, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = make(map[string]cached[V])
	}
	c.known[name] = cached[V]{v, time.Now()}
}

func (c *cache[V]) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
}

const (
	// maxHeaders is reserved for the headers of a message.
	maxHeaders = 64 << 10
	// frame is reserved for the rest of a message: names and types of attributes, the envelope's
	// punctuation.
	frame = 1 << 10
	// maxPublished is SNS's limit for a message with its attributes, unless a topic has another.
	maxPublished = 256 << 10
	// parallelReceive is the number of concurrent polls of a receiver: 100 messages.
	parallelReceive = 10
)

// Limits implements [transport.Conn]. A message that is all headers, or whose headers have many
// characters to escape, may be refused although it is within MaxBody and MaxHeaders; the error has
// its size.
func (a *account) Limits() transport.Limits {
	l := transport.Limits{
		MaxBody:         a.cfg.MaxMessage - maxHeaders - frame,
		MaxHeaders:      maxHeaders,
		MaxDelay:        transport.Unlimited,
		Lease:           a.cfg.Lease,
		MaxHold:         maxHold,
		MaxReceive:      maxBatch,
		ParallelReceive: parallelReceive,
		Unbuffered:      true,
	}
	if !a.cfg.RawBody {
		l.MaxBody = base64.StdEncoding.DecodedLen(l.MaxBody) / 3 * 3
	}
	if a.cfg.ShortDelays {
		l.MaxDelay = maxDelay
	}
	return l
}

// createTopicOf returns the ARN of the topic of a type. It creates the topic if it is missing.
func (a *account) createTopicOf(ctx context.Context, typeName string) (string, error) {
	name, err := topicName(a.cfg.TopicPrefix, typeName)
	if err != nil {
		return "", err
	}
	return a.createTopic(ctx, name)
}

func (a *account) createTopic(ctx context.Context, name string) (arn string, err error) {
	out, err := call(ctx, a, a.topics.CreateTopic, &sns.CreateTopicInput{Name: &name})
	if err != nil {
		return "", a.fault(err, "create topic %q", name)
	}
	return value(out.TopicArn), nil
}

// isCalled reports whether a queue has that name at SQS.
func (a *account) isCalled(queue, name string) bool {
	own, err := queueName(a.cfg.QueuePrefix, queue)
	return err == nil && own == name
}

// whereTimeout bounds the request for the account in an error.
const whereTimeout = 3 * time.Second

// where returns the region and the account, for an error about a queue that does not exist: it may
// exist elsewhere. It returns "" if neither is known.
func (a *account) where(ctx context.Context) string {
	if text, ok := a.location.get(""); ok {
		return text
	}
	if a.region == "" || a.identity == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, whereTimeout)
	defer cancel()
	text := fmt.Sprintf(" in region %q", a.region)
	if who, err := call(ctx, a, a.identity, &sts.GetCallerIdentityInput{}); err == nil {
		text += fmt.Sprintf(" of account %q", value(who.Account))
		a.location.set("", text)
	}
	return text
}

// redrive is the redrive policy of a queue. The zero value is none.
type redrive struct {
	target string // ARN
	most   int64  // maxReceiveCount: how often a message is received before SQS moves it
}

func (a *account) redrive(ctx context.Context, queue string) (redrive, error) {
	text, err := a.queueAttribute(ctx, queue, types.QueueAttributeNameRedrivePolicy)
	if err != nil || text == "" {
		return redrive{}, err
	}
	var read struct {
		Target string      `json:"deadLetterTargetArn"`
		Most   json.Number `json:"maxReceiveCount"` // a number or a text
	}
	if err := json.Unmarshal([]byte(text), &read); err != nil {
		return redrive{}, different("its redrive policy is not readable")
	}
	most, err := read.Most.Int64()
	if err != nil || most < 1 {
		return redrive{}, different("its redrive policy is not readable")
	}
	return redrive{read.Target, most}, nil
}

// hasDelayQueue reports whether a queue has a delay queue. Shared queues have no additions, and a
// suspect message is not delayed.
func (a *account) hasDelayQueue(q transport.Queue) bool {
	return !a.cfg.ShortDelays && !q.Shared && !q.Counted
}

// hasDeadLetters reports whether some of the queues need a dead-letter queue. Without an endpoint
// none receives from it.
func (a *account) hasDeadLetters(queues []transport.Queue) bool {
	return a.endpoint != "" && a.cfg.ReceiveLimit > 0 &&
		slices.ContainsFunc(queues, func(q transport.Queue) bool { return !q.Shared })
}

// SubscribesDerived implements [transport.DerivedSubscriber].
func (a *account) SubscribesDerived() bool { return a.cfg.EventTopics != AllTopics }
