package dialect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// maxMemo is the largest number of entries of a Memo. Each has some kilobytes.
const maxMemo = 1000

// Memo caches values by name. Some names are of queues that do not exist, so a full Memo forgets
// all entries. Its zero value is empty. Its methods are safe for concurrent use.
type Memo[V any] struct {
	entries sync.Map
	n       atomic.Int64
}

// Load returns the entry of key.
func (m *Memo[V]) Load(key any) (v V, ok bool) {
	e, ok := m.entries.Load(key)
	if !ok {
		return v, false
	}
	return e.(V), true //nolint:errcheck // the map has no other values
}

// Add returns the entry of key, after setting it to v where there is none.
func (m *Memo[V]) Add(key any, v V) V {
	if m.n.Add(1) > maxMemo {
		m.entries.Clear()
		m.n.Store(1)
	}
	e, _ := m.entries.LoadOrStore(key, v)
	return e.(V) //nolint:errcheck // the map has no other values
}

// Set replaces the entry of key.
func (m *Memo[V]) Set(key any, v V) { m.entries.Store(key, v) }

// Len returns the number of entries.
func (m *Memo[V]) Len() (n int) {
	m.entries.Range(func(any, any) bool { n++; return true })
	return n
}

// A foreign table is a queue table of NServiceBus: it has the columns of NServiceBus only. It can
// be sent to without a delay, and browsed. A driver detects one when the server refuses the first
// row for it, and remembers that.
var (
	// ErrForeign means that a queue's table is a foreign one.
	ErrForeign error = &tablequeue.UnfitError{
		Reason: `its table is one of NServiceBus, which can be sent to; to receive from it, stop its endpoint and take the table ` +
			`over by "holdfast endpoint create --adopt", or by Install with Adopt set in the Transport`,
		Foreign: true,
	}
	// ErrDelay means that a delayed message was for a foreign table.
	ErrDelay = tablequeue.ErrNoDelays
	// ErrDetected means that a transaction failed because of a foreign table that was not known.
	// The next does not.
	ErrDetected = errors.New("a queue's table turned out to be one of NServiceBus's")
)

// A Detector detects the traits of queues' tables, such as that one is foreign, when the server
// refuses a statement.
type Detector struct {
	// Suspect reports whether an error may be due to a trait that is not known.
	Suspect func(err error) bool
	// Detect looks for unknown traits of a queue's table after such an error, and reports whether
	// there are any.
	Detect func(ctx context.Context, queue string, err error) bool
	// Foreign reports whether a queue's table is known to be foreign.
	Foreign func(queue string) bool

	detecting sync.Mutex   // held from a detection until detected counts it
	detected  atomic.Int64 // traits
}

// Repeat calls write, which writes units: again while it fails because of a trait that was not
// known. It does not call write where units have a delayed row for a foreign table.
func (d *Detector) Repeat(ctx context.Context, units []*tablequeue.Unit, write func() error) error {
	for {
		err := d.Once(ctx, units, func() error {
			if err := d.CheckDelays(units); err != nil {
				return err
			}
			return write()
		})
		if !errors.Is(err, ErrDetected) {
			return err
		}
	}
}

// Once calls write, which writes units. An error because of a trait that was not known wraps
// [ErrDetected]. Another goroutine may have detected it meanwhile.
func (d *Detector) Once(ctx context.Context, units []*tablequeue.Unit, write func() error) error {
	known := d.detected.Load()
	err := write()
	if err == nil || !d.Suspect(err) {
		return err
	}
	d.detecting.Lock()
	defer d.detecting.Unlock()
	for _, q := range Queues(units) {
		if d.Detect(ctx, q, err) {
			d.detected.Add(1)
		}
	}
	if d.detected.Load() > known {
		return fmt.Errorf("%w: %w", ErrDetected, err)
	}
	return err
}

// CheckDelays returns an error where units have a delayed row for a foreign table.
func (d *Detector) CheckDelays(units []*tablequeue.Unit) error {
	for _, u := range units {
		for i := range u.Rows {
			if r := &u.Rows[i]; (r.After > 0 || !r.At.IsZero()) && d.Foreign(r.Queue) {
				return fmt.Errorf("send to queue %q: %w", r.Queue, ErrDelay)
			}
		}
	}
	return nil
}

// Queues returns the queues whose tables units change, each once.
func Queues(units []*tablequeue.Unit) (queues []string) {
	for _, u := range units {
		if u.Queue != "" {
			queues = append(queues, u.Queue)
		}
		for i := range u.Rows {
			queues = append(queues, u.Rows[i].Queue)
		}
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}
