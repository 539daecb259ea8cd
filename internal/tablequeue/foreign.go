package tablequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	handOverRows  = 500             // in one transaction
	handOverLocks = 2 * time.Minute // for a lock on the table: a vacuum may have it
)

var errNoHandOver = errors.New("the transport cannot hand queues over to NServiceBus")

// foreignTables hands queues over to NServiceBus, and moves delayed messages of NServiceBus.
type foreignTables struct{ *core }

// handOver is a queue that is handed over to an endpoint of NServiceBus.
type handOver struct {
	*core

	tables   HandingOver
	queue    string
	forwards string // "" without that queue
	ended    bool   // the queue is one of NServiceBus already
	progress func(transport.HandOverProgress)
	state    transport.HandOverProgress
}

// HandOver implements [transport.HandOverer]. Each transaction leaves a state from which a repeated
// call goes on.
func (f *foreignTables) HandOver(
	ctx context.Context, queue string, progress func(transport.HandOverProgress),
) (transport.HandedOver, error) {
	tables := f.store.HandingOver
	if tables == nil {
		return transport.HandedOver{}, errNoHandOver
	}
	h := &handOver{core: f.core, tables: tables, queue: f.shortName(queue), progress: progress}
	return ask(ctx, f.core, []string{h.queue}, h.run)
}

func (h *handOver) run(ctx context.Context) (done transport.HandedOver, err error) {
	if err := h.find(ctx); err != nil {
		return done, err
	}
	if done.Already = h.ended; h.ended && h.forwards == "" { // the output of an earlier call may have been lost
		done.Remaining, err = h.remaining(ctx)
		return done, err
	}
	if err := h.free(ctx); err != nil {
		return done, err
	}
	if err := h.tables.PrepareHandOver(ctx, h.queue); err != nil {
		return done, err
	}
	if err := h.count(ctx); err != nil {
		return done, err
	}
	for _, from := range h.queues() {
		if err := h.moveFrom(ctx, from); err != nil {
			return done, err
		}
	}
	if !h.ended {
		if err := h.end(ctx); err != nil {
			return done, err
		}
	}
	done.Moved = h.state.Moved
	done.Remaining, err = h.remaining(ctx)
	return done, err
}

// find looks for the tables. Where an earlier call has ended the use of the queue, there may be
// messages left in that of forwards: a transaction that was open then has committed them.
func (h *handOver) find(ctx context.Context) error {
	foreign := h.store.Topology.Exists(ctx, h.queue)
	if unfit, ok := errors.AsType[*UnfitError](foreign); foreign != nil && (!ok || !unfit.Foreign) {
		return foreign
	}
	if err := h.findForwards(ctx); err != nil {
		return err
	}
	h.ended = foreign != nil
	return nil
}

func (h *handOver) findForwards(ctx context.Context) error {
	name := h.queue + ForwardsSuffix
	switch err := h.store.Topology.Exists(ctx, name); {
	case err == nil:
		h.forwards = name
	case !errors.Is(err, transport.ErrNoQueue):
		return err
	}
	return nil
}

// queues returns the queues of which messages are moved.
func (h *handOver) queues() (queues []string) {
	if h.forwards != "" {
		queues = append(queues, h.forwards)
	}
	if !h.ended {
		queues = append(queues, h.queue)
	}
	return queues
}

// free returns an error while messages are leased.
func (h *handOver) free(ctx context.Context) error {
	for _, queue := range h.queues() {
		holders, err := h.tables.Holders(ctx, queue)
		if err != nil {
			return err
		}
		if len(holders) > 0 {
			return leasedError(queue, holders)
		}
	}
	return nil
}

func leasedError(queue string, holders []Holder) error {
	var rows int64
	var owners []string
	for _, o := range holders {
		rows += o.Rows
		owners = append(owners, fmt.Sprintf("%s (%d)", o.Owner, o.Rows))
	}
	return fmt.Errorf("queue %q: %d %w, by %s: stop all instances of the endpoint; the leases of a killed one run out by themselves",
		queue, rows, ErrLeased, strings.Join(owners, ", "))
}

// count sets the number of messages to be moved.
func (h *handOver) count(ctx context.Context) error {
	for _, queue := range h.queues() {
		s, err := h.store.Topology.Inspect(ctx, queue)
		if err != nil {
			return err
		}
		h.state.Total += s.Delayed
		if queue == h.forwards {
			h.state.Total += s.Ready
		}
	}
	return nil
}

// moveFrom moves the delayed messages of a queue, unless an instance begins to receive meanwhile.
func (h *handOver) moveFrom(ctx context.Context, from string) error {
	for {
		if err := h.free(ctx); err != nil {
			return err
		}
		var moved int
		err := h.patiently(ctx, func() (err error) {
			moved, err = h.tables.MoveDelayed(ctx, h.queue, from, handOverRows, h.headers)
			return err
		})
		if err != nil || moved == 0 {
			return err
		}
		h.moved(moved)
	}
}

// patiently calls fn, which waits only briefly for locks, until it gets them.
func (h *handOver) patiently(ctx context.Context, fn func() error) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for began := time.Now(); ; {
		err := fn()
		if err == nil || errors.Is(err, ErrLeased) {
			return err
		}
		class := h.store.Classify(err)
		if class != Locked && class != Conflict || time.Since(began) > handOverLocks {
			return err
		}
		if pause.Wait(ctx) != nil {
			return err
		}
	}
}

func (h *handOver) moved(n int) {
	h.state.Moved += int64(n)
	h.progress(h.state)
}

// headers returns the headers of a message in a table of delayed messages. One without a
// destination is for the queue itself. Text that is no headers stays as it is.
func (h *handOver) headers(text string) string {
	headers, err := header.ParseJSON(text)
	if err != nil {
		return text
	}
	headers.SetDefault(header.ForwardDestination, h.address(h.queue))
	return string(headers.AppendJSON(nil))
}

// end ends the use of the table as a queue of this engine.
func (h *handOver) end(ctx context.Context) error {
	var moved int
	err := h.patiently(ctx, func() (err error) {
		moved, err = h.tables.EndHandOver(ctx, h.queue, h.headers)
		return err
	})
	if errors.Is(err, ErrLeased) {
		return cmp.Or(h.free(ctx), err)
	}
	if err == nil && moved > 0 {
		h.moved(moved)
	}
	return err
}

// remaining returns the other queues that have messages and may belong to the endpoint.
func (h *handOver) remaining(ctx context.Context) (all []transport.QueueStats, err error) {
	names, err := h.store.Topology.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name != h.queue+".quarantine" && name != h.queue+ForwardsSuffix && !strings.HasPrefix(name, h.queue+"-") {
			continue
		}
		s, err := h.store.Topology.Inspect(ctx, name)
		switch {
		case errors.Is(err, transport.ErrNoQueue):
		case err != nil:
			return nil, err
		case s.Ready+s.Unsettled+s.Delayed > 0:
			all = append(all, s)
		}
	}
	return all, nil
}

const (
	moveRows  = 100         // in one statement
	moveEvery = time.Second // between two looks for due rows
	lookEvery = time.Minute // between two looks for the table
)

// mover moves the delayed messages of NServiceBus that are due into a queue.
type mover struct {
	*core

	tables DelayedTables
	queue  string
	found  bool // the table exists
	warned bool // of the current outage
	pause  backoff.Backoff
}

// moveDelayed runs a mover for queue until the Conn is closed.
func (f *foreignTables) moveDelayed(queue string) {
	tables := f.store.DelayedTables
	if tables == nil || strings.HasSuffix(queue, ForwardsSuffix) {
		return
	}
	m := &mover{core: f.core, tables: tables, queue: queue, pause: backoff.Backoff{Min: moveEvery, Max: lookEvery}}
	f.running.Go(func() {
		for backoff.Sleep(f.life, m.step()) == nil {
		}
	})
}

// step looks for the table, or for due rows in it, and returns the time until the next step.
func (m *mover) step() time.Duration {
	ctx, cancel := context.WithTimeout(m.life, maxWait)
	defer cancel()
	var wait time.Duration
	err := m.look(ctx)
	if err == nil && !m.found {
		return lookEvery
	}
	if err == nil {
		wait, err = m.move(ctx)
	}
	switch {
	case errors.Is(err, transport.ErrNoQueue):
		m.found = false
		return lookEvery
	case err != nil:
		return m.failed(err)
	}
	m.warned = false
	m.pause.Reset()
	return wait
}

func (m *mover) look(ctx context.Context) (err error) {
	if m.found {
		return nil
	}
	if m.found, err = m.tables.HasDelayed(ctx, m.queue); m.found {
		m.cfg.Env.Log().InfoContext(ctx, "delayed messages of NServiceBus were found: they are moved into the queue when they are due",
			slog.String("queue", m.queue), slog.String("table", m.queue+DelayedSuffix))
	}
	return err
}

func (m *mover) move(ctx context.Context) (wait time.Duration, err error) {
	moved, next, err := m.tables.MoveDue(ctx, m.queue, moveRows)
	if moved > 0 {
		m.wakes.announce(m.queue)
	}
	switch {
	case moved == moveRows:
		return 0, err
	case next > 0: // a little later, for clocks that are coarser than the database's
		return min(moveEvery, next+time.Millisecond), err
	}
	return moveEvery, err
}

// failed logs the first error of an outage, and returns the pause after it.
func (m *mover) failed(err error) time.Duration {
	if !m.warned && m.life.Err() == nil {
		m.warned = true
		m.cfg.Env.Log().WarnContext(m.life, "delayed messages of NServiceBus are not moved into the queue: it is tried again",
			slog.String("queue", m.queue), slog.String("table", m.queue+DelayedSuffix), slog.Any("error", err))
	}
	return m.pause.Next()
}

// Endpoints of NServiceBus may have their queues in the database of a [Store]. Their tables have no
// visible_at: a foreign queue takes no delayed messages, and its sender keeps them in a table of
// its own until they are due. The header NServiceBus.SqlServer.ForwardDestination of such a message
// has the address that it is for.

// DelayedSuffix is the end of the name of the table in which an endpoint of NServiceBus keeps its
// delayed messages, after the name of its queue.
const DelayedSuffix = ".Delayed"

// DelayedTables is the part of a [Store] that reads the tables with [DelayedSuffix]. Several
// processes may move the rows of one table at once.
type DelayedTables interface {
	// HasDelayed reports whether there is such a table beside queue. A table of that name with
	// other columns than those of NServiceBus is an [*UnfitError].
	HasDelayed(ctx context.Context, queue string) (bool, error)
	// MoveDue moves up to limit rows that are due from that table into queue, the earliest first,
	// in one transaction. The rows keep headers and body, and get new ids. It skips locked rows.
	// Whether a row is due is decided as NServiceBus does, who writes the time in UTC without a
	// zone, which the server reads in the time zone of the session.
	//
	// next is the time until the next row is due; 0 when there is none. It fails with
	// [transport.ErrNoQueue] when the table does not exist any more.
	MoveDue(ctx context.Context, queue string, limit int) (moved int, next time.Duration, err error)
}

// HandingOver is the part of a [Store] that changes a queue so that an endpoint of NServiceBus can
// receive from the queue. NServiceBus ignores visible_at and leases.
type HandingOver interface {
	// Holders returns the owners of the rows of queue that are leased now, the first by name first.
	Holders(ctx context.Context, queue string) ([]Holder, error)
	// PrepareHandOver makes the ids of queue unique, and creates the table with [DelayedSuffix]
	// where it is missing. Both can be done while other programs send to queue, and may be
	// repeated. A table that cannot become one of NServiceBus is an [*UnfitError].
	PrepareHandOver(ctx context.Context, queue string) error
	// MoveDelayed moves up to limit rows without a lease, in one transaction, from the queue from
	// into the table with [DelayedSuffix] of queue, with the headers that headers returns for
	// theirs, and returns their number. These are the rows that become visible later; where from is
	// another queue than queue, all rows.
	MoveDelayed(ctx context.Context, queue, from string, limit int, headers func(string) string) (int, error)
	// EndHandOver does in one transaction, in which no other program uses queue: it fails with
	// [ErrLeased] while a row is leased, moves the rows that MoveDelayed moves, and removes the
	// columns that NServiceBus's tables do not have, so that the queue is a foreign one afterwards.
	// It waits for a lock at most 50 ms, and then fails with a Locked error: others wait behind it.
	EndHandOver(ctx context.Context, queue string, headers func(string) string) (moved int, err error)
}

// Holder is an owner of leases with the number of leased rows.
type Holder struct {
	Owner string
	Rows  int64
}

// ErrLeased means that rows of a queue are leased.
var ErrLeased = errors.New("messages are leased")
