package asb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

// schedule hands delayed messages to the broker, which keeps them until they are due by its clock. Those due at one moment
// leave in one request.
func (o *outlet) schedule(ctx context.Context, group []*parcel) {
	var requests sync.WaitGroup
	for len(group) > 0 {
		n := 1
		for n < len(group) && n < mostScheduled && group[n].due.Equal(group[0].due) {
			n++
		}
		together := group[:n]
		requests.Go(func() { o.scheduleAt(ctx, together) })
		group = group[n:]
	}
	requests.Wait()
}

// mostScheduled bounds a request. It has to fit into a message, too.
const mostScheduled = 50

// latest is the last moment that the service knows.
var latest = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

func (o *outlet) scheduleAt(ctx context.Context, group []*parcel) {
	err := o.transmit(ctx, func(ctx context.Context, t *transmission) error {
		for left := group; len(left) > 0; {
			n := t.room(left)
			t.scheduleSome(ctx, left[:n])
			left = left[n:]
		}
		return nil
	})
	if err != nil {
		o.failed(group, err)
	}
}

// room is how many of a group fit into one request.
func (t *transmission) room(group []*parcel) int {
	total := 0
	for i, p := range group {
		if total += p.size; i > 0 && total > t.conn.sizes.message/2 {
			return i
		}
	}
	return len(group)
}

func (t *transmission) scheduleSome(ctx context.Context, group []*parcel) {
	msgs := make([]*azservicebus.Message, len(group))
	for i, p := range group {
		msgs[i] = p.msg
	}
	// The protocol knows milliseconds, and not before is not before.
	at := group[0].due.Add(time.Millisecond - 1).Truncate(time.Millisecond)
	if at.After(latest) {
		at = latest
	}
	var numbers []int64
	err := t.try(ctx, func() (err error) {
		numbers, err = t.sender.ScheduleMessages(ctx, msgs, at, nil)
		return err
	})
	if err != nil {
		t.failed(group, t.outcome(ctx, err))
		return
	}
	for i, p := range group {
		if i < len(numbers) {
			p.receipt.Cancel = receipt(numbers[i], t.entity)
		}
	}
}

// failed notes why a group was not scheduled.
func (o *outlet) failed(group []*parcel, err error) {
	for _, p := range group {
		p.err = err
		p.err = o.result(p)
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
	o, err := c.outlet(entity)
	if err != nil {
		return err
	}
	err = o.transmit(ctx, func(ctx context.Context, t *transmission) error { return t.cancel(ctx, number) })
	if errors.Is(err, transport.ErrNoQueue) { // the number's, or the queue's
		return fmt.Errorf("asb: cancel message %d of %q: %w", number, entity, transport.ErrNotFound)
	}
	return err
}

func (t *transmission) cancel(ctx context.Context, number int64) error {
	err := t.sender.CancelScheduledMessages(ctx, []int64{number}, nil)
	if err != nil && !refused(err) {
		t.broken = true
		if ctx.Err() != nil {
			err = context.Cause(ctx) // or that the session has ended
		}
	}
	return wrap(err, "cancel message %d of %q", number, t.entity)
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
