// Package inbox recognizes and counts the messages that an endpoint has handled before.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/handledid"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Inbox recognizes messages that were handled before, by the ids that the database has recorded. An
// Inbox is safe for concurrent use.
type Inbox struct {
	Store transport.OutboxStore
	Name  string
	Queue string // the endpoint's own queue
	Log   *slog.Logger
	// Translates: a function of the driver's user may give a message another id or body after the
	// message has arrived.
	Translates bool

	begun   begun
	pausing atomic.Int64 // when looking at arrival goes on after a failure, in Unix nanoseconds

	duplicates atomic.Int64
	unnamed    sync.Map // the queues in which a message without an id was logged
}

// Recognize reports whether the message was handled before. If not, the key of the message is
// recorded with the unit. first is set at the first attempt at the delivery. Recognize fails if
// another message with the id was handled before, or if the database fails.
func (b *Inbox) Recognize(
	ctx context.Context, d *settle.Delivery, u *work.Unit, first bool,
) (handled bool, err error) {
	if !settle.IsNamed(d.ID) {
		if _, logged := b.unnamed.LoadOrStore(d.Queue, nil); !logged {
			b.Log.WarnContext(ctx, "a message has no id, so the inbox recognizes no second delivery "+
				"of it: let its sender set a message id, or set Message.ID in the Translate "+
				"function of the transport", slog.String("queue", d.Queue))
		}
		return false, nil
	}
	key, state, err := b.look(ctx, d, first)
	if err != nil {
		return false, u.Fail(fmt.Errorf("look for the message in inbox %q: %w", b.Name, err))
	}
	switch state {
	case transport.Handled:
		b.duplicates.Add(1)
		return true, nil
	case transport.HandledOther:
		return false, recoverability.Unrecoverable(&sameIDError{d.LogID()})
	case transport.NotHandled:
	}
	u.Key = &key
	return false, nil
}

// look returns the key of a message, and the state: as found when the message arrived, if that
// answer is still good.
func (b *Inbox) look(
	ctx context.Context, d *settle.Delivery, first bool,
) (transport.HandledKey, transport.HandledState, error) {
	early, ok := d.Slot.Attached().(*look)
	if ok && b.Translates {
		ok = early.key == b.keyOf(&d.Message)
	}
	if !ok {
		early = &look{key: b.keyOf(&d.Message)}
	}
	if b.begun.isFirst(early.key.ID, early.begun) && ok && first && time.Since(early.at) < lookAge {
		return early.key, early.state, nil
	}
	states, err := b.Store.FindHandled(ctx, b.Name, []transport.HandledKey{early.key})
	if err != nil {
		return early.key, transport.NotHandled, err
	}
	return early.key, states[0], nil
}

// sameIDError is the failure of a message with the id of another message that was handled before.
type sameIDError struct{ id string }

func (e *sameIDError) Error() string {
	return fmt.Sprintf("another message with the id %q, and another type or body, was handled "+
		"before: its sender must give each message an id of its own. To handle this one "+
		"nevertheless, remove the id by holdfast handled forget, and return the message to its "+
		"queue", e.id)
}

// FaultClass returns the class of the fault in the error queue.
func (e *sameIDError) FaultClass() string { return "same-id" }

// FaultType returns the name of the type in fault headers.
func (e *sameIDError) FaultType() string { return "*endpoint.sameIDError" }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// keyOf returns the key of a message.
func (b *Inbox) keyOf(m *settle.Message) transport.HandledKey {
	sum := crc32.Update(0, castagnoli, []byte(m.Original.Headers.Get(header.EnclosedMessageTypes)))
	key := transport.HandledKey{Sum: crc32.Update(sum, castagnoli, m.Original.Body)}
	if m.Queue == b.Queue {
		key.ID = handledid.Of(m.Queue, m.ID)
	} else {
		key.ID = handledid.Hashed(m.Queue, m.ID)
	}
	return key
}

// Duplicates returns the number of messages that were recognized.
func (b *Inbox) Duplicates() int64 { return b.duplicates.Load() }

// Verify returns an error if the inbox is missing, or cannot be used.
func (b *Inbox) Verify(ctx context.Context) error {
	_, err := b.Store.FindHandled(ctx, b.Name, []transport.HandledKey{{}})
	if errors.Is(err, transport.ErrNoQueue) {
		err = fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
	}
	return err
}

// Messages that arrive together are looked for in the inbox by one request, before the messages
// wait for a handler. An attempt that finds no answer, or an old answer, asks again. In either case
// the commit fails if another process has handled the message meanwhile.

const (
	// lookAge is the time for which the state of a message that waits for a handler is good.
	// Another process may handle a copy.
	lookAge = time.Second
	// arrivalTimeout bounds a request for messages that have arrived, and arrivalPause is the time
	// without such a request after a failure.
	arrivalTimeout = time.Second
	arrivalPause   = time.Second
)

// look is the answer of the inbox when a message arrived.
type look struct {
	key   transport.HandledKey
	state transport.HandledState
	at    time.Time
	begun int64 // attempts that had begun
}

// Arrived returns the function that looks for the messages that have arrived in a queue; nil
// without an inbox.
func (b *Inbox) Arrived(queue string) func(context.Context, []pump.Slot) {
	if b == nil {
		return nil
	}
	return func(ctx context.Context, arrived []pump.Slot) { b.lookForAll(ctx, queue, arrived) }
}

// lookForAll attaches a look to each message that has an id. If the database does not answer, no
// look is attached, and the attempts ask.
func (b *Inbox) lookForAll(ctx context.Context, queue string, arrived []pump.Slot) {
	now := time.Now()
	if now.UnixNano() < b.pausing.Load() {
		return
	}
	looks, keys := make([]look, 0, len(arrived)), make([]transport.HandledKey, 0, len(arrived))
	slots := make([]*pump.Slot, 0, len(arrived))
	begun := b.begun.count()
	for i := range arrived {
		m := settle.Message{Queue: queue}
		m.Original, m.ID = settle.OriginalOf(arrived[i].Delivery().Message())
		if settle.IsNamed(m.ID) && m.Original.Undecodable == nil {
			key := b.keyOf(&m)
			looks, keys = append(looks, look{key: key, at: now, begun: begun}), append(keys, key)
			slots = append(slots, &arrived[i])
		}
	}
	if len(keys) == 0 {
		return
	}
	if b.find(ctx, keys, looks) != nil {
		b.pausing.Store(time.Now().Add(arrivalPause).UnixNano())
		return
	}
	for i, s := range slots {
		s.Attach(&looks[i])
	}
}

// find sets the state of each look. A panic of the driver is an error here, and again in the
// attempts.
func (b *Inbox) find(ctx context.Context, keys []transport.HandledKey, looks []look) (err error) {
	defer panics.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, arrivalTimeout)
	defer cancel()
	states, err := b.Store.FindHandled(ctx, b.Name, keys)
	if err != nil {
		return err
	}
	for i := range looks {
		looks[i].state = states[i]
	}
	return nil
}

// bytesPerID is the size of a recorded id with its indexes on PostgreSQL, to which an inbox grows.
const bytesPerID = 125

// Report logs the size of the inbox, and the size to which the inbox grows at the rate of the last
// hour if ids are remembered for a time.
func (b *Inbox) Report(ctx context.Context, remember time.Duration) {
	inspector, ok := b.Store.(transport.InboxInspector)
	if !ok {
		return
	}
	stats, err := inspector.InspectInbox(ctx, b.Name)
	if err != nil {
		if ctx.Err() == nil {
			b.Log.WarnContext(ctx, "the inbox cannot be inspected",
				slog.String("inbox", b.Name), slog.Any("error", err))
		}
		return
	}
	b.Log.InfoContext(ctx, "ids of handled messages are kept, to recognize a message that comes again",
		slog.String("inbox", b.Name), slog.Duration("remember", remember),
		slog.Int64("ids", stats.Rows), slog.Int64("bytes", stats.Bytes),
		slog.Int64("last_hour", stats.LastHour),
		slog.Int64("expected_bytes", expectedBytes(stats.LastHour, remember)))
}

// expectedBytes returns the size to which an inbox grows that gets as many ids each hour.
func expectedBytes(hourly int64, remember time.Duration) int64 {
	return int64(float64(hourly) * remember.Hours() * bytesPerID)
}

// begun are the keys of the attempts that began last. Without begun a message would count as new
// although this process has handled a copy between the look and the attempt.
type begun struct {
	mu          sync.Mutex // guards the rest
	n           int64
	now, before map[[16]byte]struct{}
}

// generation is the number of keys that are remembered at least.
const generation = 1024

// count returns the number of attempts that have begun.
func (b *begun) count() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// isFirst adds an attempt at the message with a key. It reports whether no other attempt at the
// message has begun since n attempts had begun; false if begun does not know.
func (b *begun) isFirst(key [16]byte, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, isNow := b.now[key]
	_, wasBefore := b.before[key]
	known := b.n-n < generation
	if len(b.now) >= generation {
		b.now, b.before = b.before, b.now
		clear(b.now)
	}
	if b.now == nil {
		b.now = make(map[[16]byte]struct{}, generation)
	}
	b.now[key] = struct{}{}
	b.n++
	return known && !isNow && !wasBefore
}
