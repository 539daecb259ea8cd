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

// schedule asks the broker to keep delayed messages until they are due by its clock, and for the numbers that cancel them. Those due
// at one moment share a request. Messages without a receipt are scheduled by a property instead, and sent like others.
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
	// mostScheduled bounds a request. It has to fit into a message, too.
	mostScheduled = 50
	// mostManaged is the largest message that the service schedules on request: for larger ones the request times out.
	// https://github.com/Azure/azure-service-bus/issues/740
	mostManaged = 1 << 20
)

// latest is the last moment that the service knows.
var latest = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// due is when a message is due by the protocol, which has milliseconds: not before at.
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

// room is how many of a group fit into one request.
func (b *messageBatch) room(group []*outgoing) int {
	total := 0
	for i, m := range group {
		if total += m.size; i > 0 && total > b.conn.sizes.message/2 {
			return i
		}
	}
	return len(group)
}

// scheduleSome makes a request. One that is refused for one of its messages is made for each of them.
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
	case group[0].publish && errors.Is(plain(err), transport.ErrNoQueue): // the link to the topic itself is there
		fail(group, b.unmanaged(err))
	default:
		fail(group, b.outcome(ctx, b.sized(group[0], err)))
	}
	for i := range numbers {
		group[i].receipt.Cancel = receipt(numbers[i], b.entity)
	}
}

// receipt names a scheduled message: its number, and where.
func receipt(number int64, entity string) string {
	return strconv.FormatInt(number, 10) + "@" + entity
}

// Cancel implements [transport.Canceler]. The broker says whether there was such a message.
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
		case oneOf(err, transport.ErrNoQueue, transport.ErrNotFound): // the number's, or the queue's
			return fmt.Errorf("asb: cancel message %d of %q: %w", number, entity, transport.ErrNotFound)
		}
		return err
	}
}

// alreadyCancelled is in the answer to a request to cancel a message that another request cancels at the moment, such as an earlier
// one whose answer was lost.
const alreadyCancelled = "already being cancelled"

func (b *messageBatch) cancel(ctx context.Context, number int64) error {
	err := b.over.CancelScheduledMessages(ctx, []int64{number}, nil)
	if answerCode(err) == http.StatusBadRequest && strings.Contains(err.Error(), alreadyCancelled) {
		return transport.ErrNotFound
	}
	if err != nil && !refused(err) {
		b.broken = true
		if ctx.Err() != nil {
			err = context.Cause(ctx) // or that the session has ended
		}
	}
	return wrap(err, "cancel message %d of %q", number, b.entity)
}

func parseReceipt(handle string) (number int64, entity string, ok bool) {
	digits, entity, ok := strings.Cut(handle, "@")
	number, err := strconv.ParseInt(digits, 10, 64)
	return number, entity, ok && err == nil && validEntity(entity)
}

// forget closes what was opened to look at a queue.
func (c *conn) forget(r *azservicebus.Receiver) {
	ctx, cancel := context.WithTimeout(c.ctx, closeTimeout)
	defer cancel()
	_ = r.Close(ctx) // what is left ends with the session
}
