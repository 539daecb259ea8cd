// Package inmemory is a message broker in the memory of the process: the smallest complete driver,
// for tests, examples and benchmarks of the endpoint.
//
// It implements the contract of package transport with one exception: no message survives the
// process. It starts no goroutine and uses only the clock of package time, so that it works inside
// a testing/synctest bubble, where an hour of delay takes no time.
//
// It offers every capability. Transport.Without removes some, to test an endpoint on a broker
// without them.
package inmemory

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Transport is a broker and its configuration: endpoints with the same *Transport reach each other,
// and messages wait in it while none is connected. The zero value is an empty broker with every
// capability. Set the fields before the first use, and do not copy it after.
type Transport struct {
	// Lease is the time after which a delivery expires unless its lease is renewed; then the
	// message is delivered again. 0: a delivery is valid until the Conn is closed.
	Lease time.Duration
	// MaxBody and MaxHeaders are the largest body and the largest headers of a message, in bytes.
	// 0: no limit.
	MaxBody    int
	MaxHeaders int
	// MaxDelay is the longest delay of an operation. 0: no limit.
	MaxDelay time.Duration
	// MaxReceive is the largest number of deliveries that one Receive returns. 0: no limit.
	MaxReceive int
	// Without names capabilities that the transport does not offer. 0: it offers all.
	Without Capability
	// Satellites are the satellites that every Conn reports.
	Satellites []transport.Satellite
	// Fail, if set, is called before every call that a broker could fail. If it returns an error,
	// the call returns that error and has no effect. verb is the name of the method ("Open",
	// "Dispatch", "Receive", "Complete"; "Dispatch" also for each operation of CompleteWith and
	// Store), and object is the queue, the queues, the inbox, the first type of a publish, a
	// receipt, the kind of records, or the id of a record as the text of a UUID. "Store" is also
	// the verb of Complete of a transaction of BeginStore. It must be safe for concurrent use.
	Fail func(verb, object string) error
	// Refuse, if set, is called with each operation that is checked or sent. If it returns an
	// error, the broker refuses the operation because of its message: that error is
	// [transport.ErrContent] or a TooLargeError. It must be safe for concurrent use.
	Refuse func(op *transport.Operation) error

	broker broker
}

// Capability is a set of capabilities, mostly optional interfaces of package transport.
type Capability uint

// The capabilities that Transport.Without removes, with the effect.
const (
	Installer    Capability = 1 << iota // queues must exist: see [Transport.CreateQueues]; no Verifier, Remover and OutboxStore
	Subscriber                          // publishing is refused
	Inspector                           // no depths
	Completer                           // completing and sending are two steps
	Transactor                          // no transactions
	DeadLetterer                        // no dead-letter queues
	Delay                               // Limits.MaxDelay is 0, and delays are refused
	Exact                               // Attempt.N is 1 for the first delivery and 2 for later ones
	FreeRelease                         // a release counts as an attempt
	ByteReceiver                        // a Receive is limited by number only
	OutboxStore                         // no inboxes and no HandledRecorder; no records
)

// System returns "inmemory".
func (*Transport) System() string { return "inmemory" }

// Open connects to the broker. It fails only if Transport.Fail returns an error or ctx has ended.
func (t *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	if err := t.refuse(ctx, "Open", ""); err != nil {
		return nil, err
	}
	c := newConn(t, env)
	return withoutConn(c, t.Without), nil
}

// CreateQueues creates the named queues, as Install does.
func (t *Transport) CreateQueues(names ...string) {
	t.broker.mu.Lock()
	defer t.broker.mu.Unlock()
	for _, name := range names {
		t.broker.create(name)
	}
}

// Put appends a message to a queue as another program could: without checks, and with Native,
// NativeID and Undecodable unchanged. The broker owns m afterwards. It fails with
// [transport.ErrNoQueue].
func (t *Transport) Put(queue string, m *transport.Message) error {
	t.broker.mu.Lock()
	defer t.broker.mu.Unlock()
	q, err := t.broker.find(queue)
	if err != nil {
		return err
	}
	q.put(&item{message: *m}, time.Now(), 0)
	return nil
}

// Messages returns the messages of a queue that are ready to be received, in order, and leaves them
// there. It returns none if there is no such queue.
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

// refuse returns the error with which a call fails before it does anything.
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
