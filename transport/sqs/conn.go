package sqs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Conn = (*conn)(nil)

// conn is an open transport. There is no connection to lose: each request finds its own.
type conn struct {
	cfg      Transport // with its defaults
	endpoint string    // of the endpoint that it is open for; "" for tools
	instance string
	log      *slog.Logger
	clients

	ctx     context.Context //nolint:containedctx // of the conn's own goroutines; ends with Close
	cancel  context.CancelFunc
	closing atomic.Bool
	tasks   tasks

	urls        urls
	rooms       rooms
	sending     pace     // of all that is sent
	denied      sync.Map // *pace by queue and topic that may not be sent to
	account     account
	senders     senders
	withoutHops sync.Map                   // time.Time by queue: when it had no queue for long delays
	chain       delayeddelivery.DelayChain // awsChain, but for tests
	sentOn      delayeddelivery.Memory     // messages that wait for long

	mu        sync.Mutex             // guards what follows
	receivers map[*receiver]struct{} // nil after Close
	inFlights map[string]*inFlight
}

// openConn sees to it that SQS answers. A queue by the endpoint's name need not exist.
func openConn(ctx context.Context, cfg Transport, by clients, env transport.Env) (*conn, error) {
	c := &conn{
		cfg: cfg, endpoint: env.Endpoint, instance: env.Instance, log: env.Log(), clients: by,
		account: newAccount(), senders: senders{by: make(map[destination]batcher[entry])}, chain: awsChain, sentOn: delayeddelivery.Memory{Size: rememberedHops},
		receivers: make(map[*receiver]struct{}), inFlights: make(map[string]*inFlight),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	_, err := c.queueURL(ctx, cmp.Or(env.Endpoint, "holdfast"))
	isTool := env.Endpoint == "" // which asks only whether the credentials are good
	if err != nil && !errors.Is(err, transport.ErrNoQueue) && (!isTool || !isDenied(err)) {
		c.cancel()
		by.close()
		return nil, err
	}
	return c, nil
}

// closeTimeout bounds the giving back of what is held.
const closeTimeout = 3 * time.Second

func (c *conn) closed() bool { return c.closing.Load() }

// Close ends what is under way and gives back what is not settled.
func (c *conn) Close() error {
	if c.closing.Swap(true) {
		c.tasks.stop()
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
	c.releaseAll()
	c.cancel()
	c.tasks.stop()
	c.close()
	return nil
}

// releaseAll gives back what is held in all queues.
func (c *conn) releaseAll() {
	ctx, cancel := context.WithTimeout(c.ctx, closeTimeout)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	var all sync.WaitGroup
	for _, in := range c.inFlights {
		all.Go(func() { in.release(ctx, in.unsettled()) })
	}
	all.Wait()
}

// requestTimeout bounds a request with the SDK's repetitions, but for those that wait for messages.
const requestTimeout = 15 * time.Second

// request is a context for one request: it ends with ctx, with the conn, and in time.
func (c *conn) request(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// urls remembers where queues are, by the names that endpoints know.
type urls struct {
	mu    sync.Mutex // guards known
	known map[string]string
}

func (u *urls) get(queue string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.known[queue]
}

func (u *urls) set(queue, url string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known == nil {
		u.known = make(map[string]string)
	}
	u.known[queue] = url
}

func (u *urls) forget(queue string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.known, queue)
}

// queueURL is where the queue of that name is. It fails with ErrNoQueue where there is none; that is not remembered.
func (c *conn) queueURL(ctx context.Context, queue string) (string, error) {
	if c.closed() {
		return "", transport.ErrClosed
	}
	if url := c.urls.get(queue); url != "" {
		return url, nil
	}
	name, err := queueName(c.cfg.QueuePrefix, queue)
	if err != nil {
		return "", err
	}
	ctx, cancel := c.request(ctx)
	defer cancel()
	out, err := c.queues.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return "", c.fault(err, "look for queue %q", queue)
	}
	c.urls.set(queue, *out.QueueUrl)
	return *out.QueueUrl, nil
}
