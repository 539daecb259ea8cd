package outbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// storedRow is a stored message.
type storedRow struct {
	delivery transport.Delivery
	timer    string // the stored name of a timer; else ""
	stored   time.Time
	total    int         // operations when the row was received
	outdated bool        // the stored row lacks the time of a refusal
	left     int         // operations that are not sent yet
	lost     atomic.Bool // the lease is lost, or the row was moved
}

// setDelay sets the delay of an operation of the row, which was received now: the broker has a clock
// of its own. A timer is due, as its row was received.
func (r *storedRow) setDelay(op *transport.Operation, now time.Time) {
	switch {
	case r.timer != "":
		op.At = time.Time{}
	case !op.At.IsZero():
		op.After, op.At = op.Delay(now), time.Time{}
	}
}

// owner is the row of an operation.
type owner struct {
	row   *storedRow
	tries int // refusals of the operation that may have been temporary
	waits waiting

	// refused is the time of the first refusal by a full queue, by the clock of the outbox; zero for
	// no refusal.
	refused  time.Time
	outdated bool // the stored row lacks refused
}

// fullFor returns for how long a full queue has refused the operation: since now, if the refusal is
// the first.
func (o *owner) fullFor(now time.Time) time.Duration {
	if o.refused.IsZero() {
		o.refused, o.outdated = now, true
	}
	return now.Sub(o.refused)
}

// waiting is the reason why an operation stays in the outbox.
type waiting int8

const (
	forBroker      waiting = iota // the broker does not answer
	forDestination                // the destination takes no messages at the moment
	forErrorQueue                 // the destination and the error queue refuse the operation
)

var errNotReplaced = errors.New("the outbox cannot replace a stored message")

// firstRow returns the number of operations of the first row.
func firstRow(owners []owner) int {
	n := slices.IndexFunc(owners, func(o owner) bool { return o.row != owners[0].row })
	if n < 0 {
		return len(owners)
	}
	return n
}

// takeRefused removes the time of the first refusal from a stored message, and returns the time;
// zero if there is none.
func takeRefused(m *transport.Message) time.Time {
	text := m.Headers.Get(header.HoldfastOutboxRefused)
	if text == "" {
		return time.Time{}
	}
	m.Headers.Del(header.HoldfastOutboxRefused)
	refused, err := header.ParseTime(text)
	if err != nil {
		return time.Time{} // no relay has written the text
	}
	return refused
}

// withRefused returns an operation whose message has the time of the first refusal, to be stored.
func withRefused(op transport.Operation, refused time.Time) transport.Operation {
	if refused.IsZero() {
		return op
	}
	m := *op.Message
	m.Headers = m.Headers.Clone()
	m.Headers.Set(header.HoldfastOutboxRefused, header.FormatTime(refused))
	op.Message = &m
	return op
}

// rowsHeld are the rows of a batch. The leases of the rows are renewed.
type rowsHeld struct {
	mu   sync.Mutex // guards rows
	rows []*storedRow
}

func (h *rowsHeld) add(row *storedRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rows = append(h.rows, row)
}

// all returns the rows.
func (h *rowsHeld) all() []*storedRow {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.rows)
}

// drop removes the rows that match.
func (h *rowsHeld) drop(match func(*storedRow) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rows = slices.DeleteFunc(h.rows, match)
}

// renewEvery is the longest time between two renewals: the lease of a row that was stored for this
// process is shorter than other leases.
const renewEvery = 3 * time.Second

// renew renews the leases of the rows until stop is called.
func (h *rowsHeld) renew(
	ctx context.Context, receiver transport.Receiver, lease time.Duration,
) (stop func()) {
	renewer, ok := receiver.(transport.Renewer)
	if !ok || lease <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(min(lease/3, renewEvery))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				h.renewOnce(ctx, renewer)
			}
		}
	})
	return func() {
		cancel()
		renewing.Wait()
	}
}

func (h *rowsHeld) renewOnce(ctx context.Context, renewer transport.Renewer) {
	rows := h.all()
	if len(rows) == 0 {
		return
	}
	ds := make([]transport.Delivery, len(rows))
	for i, row := range rows {
		ds[i] = row.delivery
	}
	for i, err := range renewer.Renew(ctx, ds) {
		if errors.Is(err, transport.ErrLeaseLost) {
			rows[i].lost.Store(true)
		}
	}
}
