package asb

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

// schedule sends messages that are due later and have a receipt: the request returns the numbers
// that cancel them. Messages due at the same time share a request. Messages without a receipt are
// scheduled by a property and sent like others.
func (s *sender) schedule(ctx context.Context, group []*outgoing) {
	var requests sync.WaitGroup
	for len(group) > 0 {
		n := 1
		for n < len(group) && n < mostScheduled && group[n].due.Equal(group[0].due) {
			n++
		}
		together := group[:n]
		requests.Go(func() { s.paced(ctx, together, s.scheduleAt) })
		group = group[n:]
	}
	requests.Wait()
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

func (s *sender) scheduleAt(ctx context.Context, group []*outgoing) {
	err := s.withLink(ctx, func(ctx context.Context, b *messageBatch) error {
		for left := group; len(left) > 0; {
			n := b.room(left)
			b.scheduleSome(ctx, left[:n])
			left = left[n:]
		}
		return nil
	})
	if err != nil {
		fail(group, err)
	}
}

// room returns how many messages of a group fit in one request.
func (b *messageBatch) room(group []*outgoing) int {
	total := 0
	for i, m := range group {
		if total += m.size; i > 0 && total > b.conn.ns.MaxMessageSize/2 {
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

// receipt names a scheduled message by its number and destination.
func receipt(number int64, entity string) string {
	return strconv.FormatInt(number, 10) + "@" + entity
}

// Cancel implements [transport.Canceler].
func (c *conn) Cancel(ctx context.Context, handle string) error {
	number, entity, ok := parseReceipt(handle)
	if !ok {
		return fmt.Errorf("asb: receipt %.100q: %w", handle, transport.ErrNotFound)
	}
	s, err := c.sender(entity)
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		own, err := s.turn(ctx, began, false)
		if err == nil {
			err = s.withLink(ctx, func(ctx context.Context, b *messageBatch) error { return b.cancel(ctx, number) })
			own.end(err)
		}
		switch {
		case own.of != nil && errors.Is(err, errBusy):
			continue
		case oneOf(err, transport.ErrNoQueue, transport.ErrNotFound): // the queue or the message
			return fmt.Errorf("asb: cancel message %d of %q: %w", number, entity, transport.ErrNotFound)
		}
		return err
	}
}

// alreadyCancelled is in the answer when another request is cancelling the message, such as an
// earlier one whose answer was lost.
const alreadyCancelled = "already being cancelled"

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

func parseReceipt(handle string) (number int64, entity string, ok bool) {
	digits, entity, ok := strings.Cut(handle, "@")
	number, err := strconv.ParseInt(digits, 10, 64)
	return number, entity, ok && err == nil && validEntity(entity)
}
