package rabbitmq

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

// maxRedelivered bounds how many messages are remembered.
const maxRedelivered = 1000

// redelivered remembers the messages that were unsettled when their channel was lost, until they
// are redelivered. A message that has been completed in the meantime lacks only its
// acknowledgement, and need not be handled again. That is best effort: another process may receive
// the message. Messages that are completed before they are handled are not remembered when that
// failed, for they were not handled.
type redelivered struct {
	mu        sync.Mutex // guards the fields below
	completed map[identity]bool
	order     []identity // oldest first; some may be missing in completed
}

// identity tells a message from its copies, which have the same id: a retry, and a message that was
// returned from the error queue, have other headers.
type identity [sha256.Size]byte

func identityOf(queue string, m *transport.Message) identity {
	fields := make([]string, 0, m.Headers.Len())
	for name, value := range m.Headers.All() {
		fields = append(fields, strconv.Quote(name)+strconv.Quote(value))
	}
	slices.Sort(fields)
	h := sha256.New()
	for _, s := range append(fields, queue, m.ID) {
		h.Write(strconv.AppendQuote(nil, s))
	}
	h.Write(m.Body)
	return identity(h.Sum(nil))
}

// remember records the deliveries that will be redelivered though they may be completed.
func (c *channel) remember() {
	for _, p := range c.acks.pending {
		c.receiver.remember(p.of, true)
	}
	for d := c.acks.oldest; d != nil; d = d.next {
		if !d.receivedAt.IsZero() {
			c.receiver.remember(d, d.completed)
		}
	}
}

// remember records a lost delivery. One without an id of its own is left out: another message may
// have the same content, and would be acknowledged in its place when it is retried.
func (r *receiver) remember(d *delivery, completed bool) {
	if !d.unnamed {
		r.of.redelivered.add(r.queue, &d.message, completed)
	}
}

// completedLate records a delivery whose acknowledgement cannot be sent any more.
func (c *channel) completedLate(d *delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.state == stateSettled {
		return // or its acknowledgement is pending
	}
	d.completed = true
	if c.ended != nil || d.state == stateTimedOut {
		c.receiver.of.redelivered.complete(c.receiver.queue, &d.message)
	}
}

func (r *redelivered) add(queue string, m *transport.Message, completed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.completed == nil {
		r.completed = make(map[identity]bool)
	}
	if len(r.order) == maxRedelivered {
		delete(r.completed, r.order[0])
		r.order = r.order[1:]
	}
	id := identityOf(queue, m)
	r.completed[id] = completed
	r.order = append(r.order, id)
}

// complete records that a message was completed, unless it was redelivered already.
func (r *redelivered) complete(queue string, m *transport.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := identityOf(queue, m)
	if _, ok := r.completed[id]; ok {
		r.completed[id] = true
	}
}

// takeCompleted reports whether a redelivered message was completed, and forgets it.
func (r *redelivered) takeCompleted(queue string, m *transport.Message) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.completed) == 0 {
		return false
	}
	id := identityOf(queue, m)
	completed := r.completed[id]
	delete(r.completed, id)
	return completed
}
