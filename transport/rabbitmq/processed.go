package rabbitmq

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

// maxProcessed bounds how many messages are remembered.
const maxProcessed = 1000

// processed remembers the messages that were in hand when their channel was lost, until they come
// again. One that has been completed in the meantime, so that only the acknowledgement is missing, need not
// be handled again. That is a kindness and no promise: another process may be given the message. Where messages are
// completed before they are handled, one that could not be was not handled either, and is not among them.
type processed struct {
	mu        sync.Mutex // guards what follows
	completed map[identity]bool
	order     []identity // oldest first; some are not in completed any more
}

// identity tells a message from its copies, which have the same id: a retry, and what is returned from the
// error queue, have other headers.
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

// lost takes note of a delivery in hand. One without a name is left out: another message may have the same content,
// and be acknowledged in its place when it is retried.
func (r *receiver) lost(d *delivery, completed bool) {
	if !d.unnamed {
		r.conn.processed.lost(r.queue, &d.message, completed)
	}
}

// lost takes note of a message in hand.
func (p *processed) lost(queue string, m *transport.Message, completed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.completed == nil {
		p.completed = make(map[identity]bool)
	}
	if len(p.order) == maxProcessed {
		delete(p.completed, p.order[0])
		p.order = p.order[1:]
	}
	id := identityOf(queue, m)
	p.completed[id] = completed
	p.order = append(p.order, id)
}

// finish notes that a message was completed, unless it has come again already.
func (p *processed) finish(queue string, m *transport.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := identityOf(queue, m)
	if _, ok := p.completed[id]; ok {
		p.completed[id] = true
	}
}

// again tells whether a message that comes again was completed, and forgets it.
func (p *processed) again(queue string, m *transport.Message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.completed) == 0 {
		return false
	}
	id := identityOf(queue, m)
	completed := p.completed[id]
	delete(p.completed, id)
	return completed
}
