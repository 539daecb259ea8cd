package sqs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Conn = (*conn)(nil)

// conn is an open transport. It has no connection of its own: each request takes one of the HTTP
// client's pool.
type conn struct {
	cfg      Transport // with defaults
	endpoint string    // name of the endpoint; "" for tools
	instance string
	log      *slog.Logger
	clients

	ctx     context.Context //nolint:containedctx // of the conn's goroutines; ends with Close
	cancel  context.CancelFunc
	closing atomic.Bool
	tasks   goroutines.Group

	urls        cache[string]              // of queues
	rooms       cache[int]                 // size limits of queues and topics: their owners may change them
	sending     pace                       // of sends to all destinations
	denied      sync.Map                   // *pace by queue and topic to which sending was denied
	topicsARN   atomic.Pointer[string]     // see topicARNs
	withoutHops cache[struct{}]            // queues that had no queue for long delays
	chain       delayeddelivery.DelayChain // awsChain, but for tests
	sentOn      delayeddelivery.Memory     // messages that wait for long
	subscribed  sync.Map                   // typeOfQueue: by this connection
	unknown     sync.Map                   // typeOfQueue: see warnOfUnknown
	unknowns    atomic.Int32               // those in unknown
	looks       looks

	mu        sync.Mutex             // guards the fields below
	receivers map[*receiver]struct{} // nil after Close
	inFlights map[string]*inFlight
	senders   map[destination]*batch.Batcher[entry]
}

// openConn checks that SQS answers. The endpoint's queue need not exist.
func openConn(ctx context.Context, cfg Transport, by clients, env transport.Env) (*conn, error) {
	c := &conn{
		cfg: cfg, endpoint: env.Endpoint, instance: env.Instance, log: env.Log(), clients: by,
		rooms: cache[int]{age: time.Minute}, withoutHops: cache[struct{}]{age: time.Minute}, chain: awsChain,
		sentOn: delayeddelivery.Memory{Size: rememberedHops}, tasks: goroutines.Group{Keep: connsPerHost},
		receivers: make(map[*receiver]struct{}), inFlights: make(map[string]*inFlight),
		senders: make(map[destination]*batch.Batcher[entry]),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	_, err := c.queueURL(ctx, cmp.Or(env.Endpoint, "holdfast"))
	isTool := env.Endpoint == "" // for which the credentials are checked only
	if err != nil && !errors.Is(err, transport.ErrNoQueue) && (!isTool || !isDenied(err)) {
		c.cancel()
		by.close()
		return nil, err
	}
	return c, nil
}

// closeTimeout bounds the return of messages to their queues.
const closeTimeout = 3 * time.Second

func (c *conn) closed() bool { return c.closing.Load() }

// Close ends all requests and returns the messages that are not settled to their queues.
func (c *conn) Close() error {
	if c.closing.Swap(true) {
		c.tasks.Stop()
		return nil
	}
	c.mu.Lock()
	receivers := c.receivers
	c.receivers = nil
	c.mu.Unlock()
	var all sync.WaitGroup
	for r := range receivers {
		all.Go(func() { _ = r.Close() }) // never fails
	}
	all.Wait()
	c.mu.Lock()
	inFlights := slices.Collect(maps.Values(c.inFlights))
	c.mu.Unlock()
	for _, in := range inFlights {
		all.Go(func() { in.release(in.unsettled()) })
	}
	all.Wait()
	c.cancel()
	c.tasks.Stop()
	c.close()
	return nil
}

// requestTimeout bounds a request with the SDK's repetitions, except polls.
const requestTimeout = 15 * time.Second

// request returns a context for one request. It ends with ctx, with the conn, and after
// requestTimeout.
func (c *conn) request(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// call sends one request of a client.
func call[In, Out, Options any](
	ctx context.Context, c *conn, method func(context.Context, *In, ...func(*Options)) (*Out, error), in *In,
) (*Out, error) {
	ctx, cancel := c.request(ctx)
	defer cancel()
	return method(ctx, in)
}

// queueURL returns the URL of a queue. It fails with ErrNoQueue if there is none, which is not
// cached.
func (c *conn) queueURL(ctx context.Context, queue string) (string, error) {
	if c.closed() {
		return "", transport.ErrClosed
	}
	if url, ok := c.urls.get(queue); ok {
		return url, nil
	}
	name, err := queueName(c.cfg.QueuePrefix, queue)
	if err != nil {
		return "", err
	}
	out, err := call(ctx, c, c.queues.GetQueueUrl, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return "", c.fault(err, "look for queue %q", queue)
	}
	c.urls.set(queue, *out.QueueUrl)
	return *out.QueueUrl, nil
}
