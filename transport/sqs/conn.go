package sqs

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Conn       = (*conn)(nil)
	_ transport.Installer  = (*conn)(nil)
	_ transport.Subscriber = (*conn)(nil)
	_ transport.Satellites = (*conn)(nil)
	_ transport.Checker    = (*conn)(nil)

	_ transport.DerivedSubscriber = (*conn)(nil)
)

// conn is an open transport. Its parts share the account.
type conn struct {
	*account
	*sender
	*subscriptions
	*receiving
	*satellites
	*browser
	*inspector
	*installer
	*verifier
}

// newConn returns a conn that has sent no request.
func newConn(cfg Transport, by clients, env transport.Env) *conn {
	a := &account{
		cfg: cfg, endpoint: env.Endpoint, instance: env.Instance, log: env.Log(), clients: by,
		tasks: goroutines.Group{Keep: connsPerHost},
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	c := &conn{
		account: a,
		sender: &sender{
			account: a, rooms: cache[int]{age: time.Minute}, chain: awsChain,
			batchers: make(map[destination]*batch.Batcher[entry]),
		},
		subscriptions: &subscriptions{account: a},
		inspector:     &inspector{account: a, withoutHops: cache[struct{}]{age: time.Minute}},
	}
	c.receiving = &receiving{
		account: a, sender: c.sender, subscriptions: c.subscriptions,
		receivers: make(map[*receiver]struct{}), inFlights: make(map[string]*inFlight),
	}
	c.satellites = &satellites{
		account: a, sender: c.sender, sentOn: delayeddelivery.Memory{Size: rememberedHops},
	}
	c.browser = &browser{c.receiving}
	c.installer = &installer{a, c.subscriptions}
	c.verifier = &verifier{a, c.subscriptions}
	return c
}

// openConn checks that SQS answers. The endpoint's queue need not exist.
func openConn(ctx context.Context, cfg Transport, by clients, env transport.Env) (*conn, error) {
	c := newConn(cfg, by, env)
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

// Close ends all requests and returns the messages that are not settled to their queues.
func (c *conn) Close() error {
	if c.closing.Swap(true) {
		c.tasks.Stop()
		return nil
	}
	c.closeReceivers()
	c.release()
	c.cancel()
	c.tasks.Stop()
	c.close()
	return nil
}
