package asb

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

// messageBatch collects outgoing messages, and sends them as one when the next does not fit. The
// results are in the messages.
type messageBatch struct {
	*sender
	over     *senderLink
	library  *azservicebus.MessageBatch
	messages []*outgoing
	broken   bool  // the link is
	denied   error // the service refuses any request: no further one is made
}

func (b *messageBatch) add(ctx context.Context, m *outgoing) {
	if m.msg.SessionID != nil || m.msg.PartitionKey != nil { // a batch has one of each
		b.flush(ctx)
		b.single(ctx, m)
		return
	}
	b.messages = append(b.messages, m)
	if len(b.messages) == 1 {
		return // sent without a batch if no other follows
	}
	if b.fits(ctx, m) {
		return
	}
	b.messages = b.messages[:len(b.messages)-1]
	b.flush(ctx)
	b.messages = append(b.messages, m)
}

// fits adds a message to the library's batch and reports whether it had room.
func (b *messageBatch) fits(ctx context.Context, m *outgoing) bool {
	if b.library != nil {
		return b.library.AddMessage(m.msg, nil) == nil
	}
	library, err := b.over.NewMessageBatch(ctx, nil)
	if err != nil || library.AddMessage(b.messages[0].msg, nil) != nil || library.AddMessage(m.msg, nil) != nil {
		return false
	}
	b.library = library
	return true
}

// flush sends the messages added. When the service refuses a batch because of one message, all are
// sent singly, so that the others do not fail.
func (b *messageBatch) flush(ctx context.Context) {
	messages, library := b.messages, b.library
	b.messages, b.library = nil, nil
	if library == nil || b.denied != nil {
		b.singles(ctx, messages)
		return
	}
	err := b.over.SendMessageBatch(ctx, library, nil)
	switch {
	case err == nil:
	case refused(err) && !whole(err):
		b.singles(ctx, messages)
	default:
		fail(messages, b.outcome(ctx, err))
	}
}

func (b *messageBatch) singles(ctx context.Context, messages []*outgoing) {
	for _, m := range messages {
		b.single(ctx, m)
	}
}

// single sends a message by itself.
func (b *messageBatch) single(ctx context.Context, m *outgoing) {
	if b.denied != nil {
		m.err = b.denied
		return
	}
	err := b.over.SendMessage(ctx, m.msg, nil)
	if errors.Is(err, azservicebus.ErrMessageTooLarge) && m.slim() {
		err = b.over.SendMessage(ctx, m.msg, nil)
	}
	if err != nil && refused(err) && !whole(err) && m.bare() {
		err = b.over.SendMessage(ctx, m.msg, nil)
	}
	if err != nil {
		m.err = b.outcome(ctx, b.sized(m, err))
	}
}

// sized adds sizes to the error of a message that is too large for the namespace, whose limit is
// not known.
func (b *messageBatch) sized(m *outgoing, err error) error {
	if errors.Is(err, azservicebus.ErrMessageTooLarge) || errors.Is(plain(err), transport.ErrTooLarge) {
		return &transport.TooLargeError{What: "message", Size: m.size, Max: m.size - 1}
	}
	return err
}

// outcome returns the error of the messages of a failed request. Unless the service refused it, it
// may have accepted them.
func (b *messageBatch) outcome(ctx context.Context, err error) error {
	if errors.Is(err, transport.ErrTooLarge) {
		return fmt.Errorf("asb: send to %q: %w", b.entity, err)
	}
	if refused(err) {
		own := b.unsent(err)
		if refusesContent(err) {
			own = fmt.Errorf("%w (%w)", own, transport.ErrContent)
		}
		if whole(err) {
			b.denied = own
		}
		b.broken = b.broken || endsLink(err)
		return own
	}
	b.broken = true
	return fmt.Errorf("asb: send to %q: %w: %w", b.entity, plain(b.over.of.cause(ctx, err)), transport.ErrOutcomeUnknown)
}

const (
	// mostScheduled bounds the messages of a request, which has to fit in a message itself.
	mostScheduled = 50
	// mostManaged is the largest message that the service schedules in a request: for larger ones
	// the request times out. https://github.com/Azure/azure-service-bus/issues/740
	mostManaged = 1 << 20
)

// latest is the last time that the service accepts.
var latest = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// due returns at in the milliseconds of the protocol, rounded up.
func due(at time.Time) time.Time {
	at = at.Add(time.Millisecond - 1).Truncate(time.Millisecond)
	if at.After(latest) {
		return latest
	}
	return at.UTC()
}

// room returns how many messages of a group fit in one request.
func (b *messageBatch) room(group []*outgoing) int {
	total := 0
	for i, m := range group {
		if total += m.size; i > 0 && total > b.of.ns.MaxMessageSize/2 {
			return i
		}
	}
	return len(group)
}

// scheduleSome makes a request. When the service refuses it because of one message, it makes a
// request for each.
func (b *messageBatch) scheduleSome(ctx context.Context, group []*outgoing) {
	if b.denied != nil {
		fail(group, b.denied)
		return
	}
	msgs := make([]*azservicebus.Message, len(group))
	for i, m := range group {
		msgs[i] = m.msg
	}
	numbers, err := b.over.ScheduleMessages(ctx, msgs, group[0].due, nil)
	switch {
	case err == nil:
	case len(group) > 1 && refused(err) && !whole(err):
		for i := range group {
			b.scheduleSome(ctx, group[i:i+1])
		}
	case group[0].publish && errors.Is(plain(err), transport.ErrNoQueue): // the link to the topic itself exists
		fail(group, b.unmanaged(err))
	default:
		fail(group, b.outcome(ctx, b.sized(group[0], err)))
	}
	for i := range numbers {
		group[i].receipt.Cancel = receipt(numbers[i], b.entity)
	}
}

func (b *messageBatch) cancel(ctx context.Context, number int64) error {
	err := b.over.CancelScheduledMessages(ctx, []int64{number}, nil)
	if answerCode(err) == http.StatusBadRequest && strings.Contains(err.Error(), alreadyCancelled) {
		return transport.ErrNotFound
	}
	if err != nil && !refused(err) {
		b.broken = true
		err = b.over.of.cause(ctx, err)
	}
	return wrap(err, "cancel message %d of %q", number, b.entity)
}
