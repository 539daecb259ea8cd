package endpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// inboxSuffix is appended to the endpoint's name for the name of its inbox.
const inboxSuffix = ".handled"

// inbox recognizes messages that were handled before, by the ids that its database has recorded.
type inbox struct {
	store transport.OutboxStore
	name  string
	queue string // the endpoint's own queue

	begun   begun
	pausing atomic.Int64 // when looking at arrival goes on after a failure, in Unix nanoseconds

	duplicates atomic.Int64
	unnamed    sync.Map // the queues in which a message without an id was logged
}

// recognize reports whether the message was handled before. Its error is that of a message with the
// id of another, or of the database.
func (b *inbox) recognize(ctx context.Context, a *attempt) (handled bool, err error) {
	if !settle.IsNamed(a.ID) {
		if _, logged := b.unnamed.LoadOrStore(a.Queue, nil); !logged {
			a.Log.WarnContext(ctx, "a message has no id, so the inbox recognizes no second delivery of it: let its sender set a message id, "+
				"or set Message.ID in the Translate function of the transport", slog.String("queue", a.Queue))
		}
		return false, nil
	}
	key, state, err := b.look(ctx, a)
	if err != nil {
		return false, a.session.unit.Fail(fmt.Errorf("look for the message in inbox %q: %w", b.name, err))
	}
	switch state {
	case transport.Handled:
		b.duplicates.Add(1)
		return true, nil
	case transport.HandledOther:
		return false, recoverability.Unrecoverable(&sameIDError{a.LogID()})
	case transport.NotHandled:
	}
	a.session.unit.Key = &key
	return false, nil
}

// look returns the key of a message and its state: the one found when the message arrived, as long
// as that is good.
func (b *inbox) look(ctx context.Context, a *attempt) (transport.HandledKey, transport.HandledState, error) {
	early, ok := a.Slot.Attached().(*look)
	if ok && a.live.translate != nil { // the message may have got another id or body
		ok = early.key == b.keyOf(a.Original, a.Queue, a.ID)
	}
	if !ok {
		early = &look{key: b.keyOf(a.Original, a.Queue, a.ID)}
	}
	if b.begun.isFirst(early.key.ID, early.begun) && ok && a == &a.first && time.Since(early.at) < lookAge {
		return early.key, early.state, nil
	}
	states, err := b.store.FindHandled(ctx, b.name, []transport.HandledKey{early.key})
	if err != nil {
		return early.key, transport.NotHandled, err
	}
	return early.key, states[0], nil
}

// sameIDError is the failure of a message with the id of another one, which was handled before.
type sameIDError struct{ id string }

func (e *sameIDError) Error() string {
	return fmt.Sprintf("another message with the id %q, and another type or body, was handled before: its sender must give each message "+
		"an id of its own. To handle this one nevertheless, remove the id by holdfast handled forget, and return the message to its queue", e.id)
}

// FaultClass returns the class of the fault in the error queue.
func (e *sameIDError) FaultClass() string { return "same-id" }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// keyOf returns the key of a message of a queue.
func (b *inbox) keyOf(m *transport.Message, queue, id string) transport.HandledKey {
	sum := crc32.Update(0, castagnoli, []byte(m.Headers.Get(header.EnclosedMessageTypes)))
	key := transport.HandledKey{Sum: crc32.Update(sum, castagnoli, m.Body)}
	if queue == b.queue && orderedID(id, &key.ID) {
		return key
	}
	key.ID = hashedID(queue, id)
	return key
}

// HandledID returns the id in the inbox of endpoint under which the message with that id is
// recorded, where the endpoint has received the message from its own queue. Package endpoint uses
// the short name of the queue.
func HandledID(endpoint, messageID string) (id [16]byte) {
	if !orderedID(messageID, &id) {
		id = hashedID(endpoint, messageID)
	}
	return id
}

// orderedID sets key to id where that is a UUID in lower case, and reports whether it is one. Ids
// of this framework grow with time, and so do their keys. Hashes are UUIDs of version 8, so an id
// of that version is hashed too: no sender can choose the key of another message.
func orderedID(id string, key *[16]byte) bool {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' || id[14] == '8' {
		return false
	}
	for i, at := 0, 0; i < len(key); i, at = i+1, at+2 {
		if id[at] == '-' {
			at++
		}
		high, low := digit(id[at]), digit(id[at+1])
		if high > 15 || low > 15 {
			return false
		}
		key[i] = high<<4 | low
	}
	return true
}

// digit returns the value of a hexadecimal digit in lower case, and 16 for any other character.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 16
}

// hashedID returns a UUID of version 8 (RFC 9562) for a message of a queue.
func hashedID(queue, id string) (key [16]byte) {
	h := sha256.New()
	_, _ = io.WriteString(h, queue)
	_, _ = h.Write([]byte{0}) // no queue has it in its name
	_, _ = io.WriteString(h, id)
	copy(key[:], h.Sum(nil))
	key[6] = key[6]&0x0f | 0x80
	key[8] = key[8]&0x3f | 0x80
	return key
}

// completeAgain completes a message that was handled before. ServiceControl, if it has returned the
// message, waits for a notice.
func (a *attempt) completeAgain(ctx context.Context) {
	a.leaveLimit()
	a.Slot.Free()
	a.Log.InfoContext(ctx, "a message was handled before: it is completed, and not handled again",
		slog.String("message", a.LogID()), slog.Int("attempt", a.receive.Attempt.N))
	if err := a.completeProcessed(ctx, nil, nil, nil, ""); err != nil {
		a.Abandon(ctx, "a message that was handled before could not be completed: the broker delivers it again", err)
	}
}

// newInbox returns the inbox of an endpoint that keeps one; nil of any other.
func (l *live) newInbox() (*inbox, error) {
	b := &inbox{name: l.e.cfg.Name + inboxSuffix, queue: l.names.of(l.e.cfg.Name)}
	switch {
	case l.e.cfg.Remember <= 0 || l.e.cfg.SendOnly:
		return nil, nil //nolint:nilnil // no inbox is no error
	case l.outbox != nil:
		b.store = l.outbox.store
		return b, nil
	}
	store, ok := l.conn.(transport.OutboxStore)
	if !ok {
		return nil, errors.New("the transport cannot record handled messages: leave Config.Remember out")
	}
	b.store = store
	return b, nil
}

// verify fails where the inbox is missing.
func (b *inbox) verify(ctx context.Context) error {
	_, err := b.store.FindHandled(ctx, b.name, []transport.HandledKey{{}})
	if errors.Is(err, transport.ErrNoQueue) {
		err = fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
	}
	if err != nil {
		return fmt.Errorf("inbox %q: %w", b.name, granted(err))
	}
	return nil
}
