// Package inmemory is a message broker in the memory of the process: the smallest
// complete driver, for tests, examples and measuring what an endpoint itself costs.
//
// It keeps the promises of package transport but one: nothing survives the process.
// It starts no goroutine and takes time from package time only, so that it works
// inside a testing/synctest bubble, where an hour of delays takes no time.
//
// Everything optional is offered, and can be taken away again through
// Transport.Without to test what an endpoint does on a broker that has less.
package inmemory

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Transport is a broker and the way to connect to it: endpoints that are given
// the same *Transport reach each other, and messages wait in it while nobody is
// connected. The zero value is an empty broker that offers everything. Set the fields
// before the first use, and do not copy it after.
type Transport struct {
	// Lease is how long a delivery stays with its receiver without being renewed; it
	// is then handed out again. 0: until the Conn is closed.
	Lease time.Duration
	// MaxBody and MaxHeaders bound a message, in bytes. 0: no bound.
	MaxBody    int
	MaxHeaders int
	// MaxDelay bounds the delay of an operation. 0: no bound.
	MaxDelay time.Duration
	// MaxReceive bounds what one Receive returns. 0: no bound.
	MaxReceive int
	// Without takes capabilities away.
	Without Capability
	// Satellites are what every Conn asks the endpoint to work on.
	Satellites []transport.Satellite
	// Fail, when set, is asked before every call that a broker could fail; a call
	// that it returns an error for does nothing but return that. The verb is the name of
	// the method ("Open", "Dispatch", "Receive", "Complete"; "Dispatch" also for each
	// operation of CompleteWith), and object the queue concerned, or all of them, the first type
	// of a publish or a receipt. It is called from any goroutine, by several at once.
	Fail func(verb, object string) error

	broker broker
}

// Capability is a set of things that a driver may or may not offer, mostly the
// optional interfaces of package transport.
type Capability uint

// What can be taken away. The comment says what is left.
const (
	Installer    Capability = 1 << iota // queues must exist: see [Transport.CreateQueues]; no Verifier and Remover
	Subscriber                          // publishing is refused
	Inspector                           // no depths
	Completer                           // completing and sending are two steps
	Transactor                          // no transactions
	DeadLetterer                        // no dead-letter queues
	Delay                               // Limits.MaxDelay is 0, and delays are refused
	Exact                               // Attempt.N tells first from later hand-outs only: 1 or 2
	FreeRelease                         // a release counts as an attempt
	ByteReceiver                        // a Receive is bounded by number only
)

// System returns "inmemory".
func (*Transport) System() string { return "inmemory" }

// Open connects to the broker. It fails only when Transport.Fail says so or ctx has ended.
func (t *Transport) Open(ctx context.Context, _ transport.Env) (transport.Conn, error) {
	if err := t.refuse(ctx, "Open", ""); err != nil {
		return nil, err
	}
	return withoutConn(&conn{t: t, b: &t.broker, receivers: map[*receiver]bool{}}, t.Without), nil
}

// CreateQueues makes the named queues, as Install does; those that exist are left alone.
func (t *Transport) CreateQueues(names ...string) {
	t.broker.mu.Lock()
	defer t.broker.mu.Unlock()
	for _, name := range names {
		t.broker.create(name)
	}
}

// Put appends a message to a queue as a foreign program might: without checks, and
// with Native, NativeID and Undecodable as they are, so that it is received exactly as
// it was put. The broker owns m afterwards. It fails with [transport.ErrNoQueue].
func (t *Transport) Put(queue string, m *transport.Message) error {
	t.broker.mu.Lock()
	defer t.broker.mu.Unlock()
	q, err := t.broker.find(queue)
	if err != nil {
		return err
	}
	q.put(&item{message: *m}, time.Now())
	return nil
}

// Messages are the messages of a queue that are ready to be received, in order; they
// stay where they are. It is empty when there is no such queue.
func (t *Transport) Messages(queue string) []*transport.Message {
	t.broker.mu.Lock()
	defer t.broker.mu.Unlock()
	q := t.broker.queues[queue]
	if q == nil {
		return nil
	}
	q.advance()
	var found []*transport.Message
	for it := q.ready.first; it != nil; it = it.next {
		found = append(found, &it.message)
	}
	return found
}

// refuse is why a call is not made at all.
func (t *Transport) refuse(ctx context.Context, verb, object string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.Fail == nil {
		return nil
	}
	if err := t.Fail(verb, object); err != nil {
		return fmt.Errorf("inmemory: %s %q: %w", verb, object, err)
	}
	return nil
}

func (t *Transport) offers(c Capability) bool { return t.Without&c == 0 }
