package tablequeue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

// MaxBody is the largest body of a message in bytes.
const MaxBody = 64 << 20

// encoder makes rows of operations, and errors of operations of the errors of their rows.
type encoder struct {
	*core

	subs      *subscribers
	unusable  *unusable
	forwards  *forwards
	obstacles *obstacles
}

// addRows appends the rows of ops to w, and returns the operations that cannot be sent.
func (e *encoder) addRows(ctx context.Context, w *work, ops []transport.Operation) (failed []transport.OpError) {
	for i := range ops {
		if err := e.addOp(ctx, w, i, &ops[i]); err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	w.unit.Rows = lastOfEach(w.unit.Rows)
	return failed
}

var errNoDestination = errors.New("operation without message, or with neither queue nor types")

// checked returns the headers of an operation with its id, or the error of one that is refused for
// its content. An operation that removes a message has no headers.
func checked(op *transport.Operation) (headers header.Map, err error) {
	m := op.Message
	switch {
	case op.Name != "" && op.Queue == "":
		return headers, errNamedEvent
	case op.Name != "" && m == nil:
		return headers, nil
	case m == nil, op.Queue == "" && len(op.Types) == 0:
		return headers, errNoDestination
	case len(m.Body) > MaxBody:
		return headers, &transport.TooLargeError{What: "body", Size: len(m.Body), Max: MaxBody}
	}
	headers = identified(m)
	if n := headers.Len(); n > header.MaxCount { // its receiver could not read it
		return headers, &transport.TooLargeError{What: "header count", Size: n, Max: header.MaxCount}
	}
	if name, found := headers.NotUTF8(); found { // JSON has no such text
		return headers, fmt.Errorf("the header %.100q, or its value, is not valid UTF-8: %w", name, transport.ErrContent)
	}
	return headers, nil
}

func (e *encoder) addOp(ctx context.Context, w *work, index int, op *transport.Operation) error {
	headers, err := checked(op)
	if err != nil {
		return err
	}
	m := op.Message
	if m == nil {
		return e.addRow(ctx, w, Row{Queue: op.Queue, Op: index, Name: hashOf(op.Name), Removes: true})
	}
	start, rows := len(w.buf), len(w.unit.Rows)
	w.buf = headers.AppendJSON(w.buf)
	row := Row{
		Queue: op.Queue, ID: storable(m.ID), Headers: slices.Clip(w.buf[start:]), Body: m.Body,
		At: op.At, TTL: max(0, op.TTL), Op: index, Published: op.Queue == "",
	}
	if op.At.IsZero() {
		row.After = max(0, op.After)
	}
	if op.Name != "" {
		row.Name = hashOf(op.Name)
	}
	if op.Queue != "" {
		return e.addRow(ctx, w, row)
	}
	queues, err := e.subs.of(ctx, op.Types)
	if err != nil {
		return err
	}
	for _, row.Queue = range queues {
		err := e.addRow(ctx, w, row)
		if errors.Is(err, transport.ErrNoQueue) { // since the subscriptions were read
			e.subs.forget()
			continue
		}
		if err != nil {
			w.unit.Rows = w.unit.Rows[:rows] // all subscribers or none
			return err
		}
	}
	return nil
}

// identified returns the headers of m with its id, for which not every store has a column.
func identified(m *transport.Message) header.Map {
	if m.ID == "" || m.Headers.Get(header.MessageID) != "" {
		return m.Headers
	}
	h := m.Headers.Clone()
	h.Set(header.MessageID, storable(m.ID))
	return h
}

func (e *encoder) addRow(ctx context.Context, w *work, row Row) error {
	row.Queue = e.shortName(row.Queue)
	if err := e.store.Queues.Check(row.Queue); err != nil {
		return err
	}
	if row.Named() && e.isForeign(row.Queue) {
		return fmt.Errorf("queue %q: %w", row.Queue, ErrNoTimers)
	}
	if e.delaysForeign(&row) {
		if err := e.forwards.keep(ctx, &row); err != nil {
			return err
		}
	}
	if err := e.unusable.of(row.Queue); err != nil {
		return err
	}
	w.unit.Rows = append(w.unit.Rows, row)
	return nil
}

func failAll(rows []Row, err error) []transport.OpError {
	failed := make([]transport.OpError, len(rows))
	for i := range rows {
		failed[i] = transport.OpError{Index: rows[i].Op, Err: err}
	}
	return failed
}

// dispatchError returns the error of the failed operations, in their order and each once, or nil
// without any.
func dispatchError(failed []transport.OpError, total int) error {
	if len(failed) == 0 {
		return nil
	}
	slices.SortStableFunc(failed, func(a, b transport.OpError) int { return a.Index - b.Index })
	failed = slices.CompactFunc(failed, func(a, b transport.OpError) bool { return a.Index == b.Index })
	return &transport.DispatchError{Ops: failed, Total: total}
}

var errNamedEvent = errors.New("an operation with a name has no queue")

// hashOf returns what stores have of a name, which may be of any length and content.
func hashOf(name string) (hash [16]byte) {
	sum := sha256.Sum256([]byte(name))
	copy(hash[:], sum[:])
	return hash
}

// lastOfEach returns rows with the last row of each name only: the others are replaced or removed
// by it, in the same transaction.
func lastOfEach(rows []Row) []Row {
	if !slices.ContainsFunc(rows, func(r Row) bool { return r.Named() }) {
		return rows
	}
	type key struct {
		queue string
		name  [16]byte
	}
	last := map[key]int{}
	for i := range rows {
		if r := &rows[i]; r.Named() {
			last[key{r.Queue, r.Name}] = i
		}
	}
	kept := rows[:0]
	for i := range rows {
		if r := &rows[i]; !r.Named() || last[key{r.Queue, r.Name}] == i {
			kept = append(kept, *r)
		}
	}
	clear(rows[len(kept):])
	return kept
}

// blame returns a [*transport.DispatchError] for a unit that was refused: with the operations whose
// queues take no messages, or with all when there are none. For a missing inbox it returns the
// error of that, and other errors unchanged.
func (e *encoder) blame(ctx context.Context, err error, u *Unit, total int) error {
	class, rows := e.store.Classify(err), u.Rows
	var failed []transport.OpError
	if busy, ok := errors.AsType[*transport.BusyError](err); ok {
		for i := range rows {
			if rows[i].Queue == busy.Queue {
				failed = append(failed, transport.OpError{Index: rows[i].Op, Err: err})
			}
		}
		if len(failed) == 0 {
			return err
		}
		return dispatchError(failed, total)
	}
	if class == Refused && u.Key != nil && errors.Is(err, transport.ErrNoQueue) {
		state, _ := ask(ctx, e.core, nil, func(ctx context.Context) (error, error) { return e.store.Inboxes.InboxState(ctx, u.Inbox), nil })
		if errors.Is(state, transport.ErrNoQueue) {
			return state
		}
	}
	if len(rows) == 0 || class != Refused && class != Locked {
		return err
	}
	found, closed := ask(ctx, e.core, nil, func(ctx context.Context) (bool, error) {
		return e.obstacles.find(ctx, err, destinations(&Unit{Rows: rows})), nil
	})
	if found {
		for i := range rows {
			if err := e.unusable.of(rows[i].Queue); err != nil {
				failed = append(failed, transport.OpError{Index: rows[i].Op, Err: err})
			}
		}
	}
	if len(failed) == 0 && (class == Locked || closed != nil) {
		return err
	}
	if len(failed) == 0 {
		failed = failAll(rows, err)
	}
	return dispatchError(failed, total)
}

// maxLost is the number of attempts at a unit whose subscribers are gone. Each reads the
// subscriptions anew.
const maxLost = 3

// withoutLost returns failed without the copies for subscribers whose queue is gone. The other
// copies were sent.
func (e *encoder) withoutLost(failed []transport.OpError, ops []transport.Operation) []transport.OpError {
	kept := slices.DeleteFunc(failed, func(f transport.OpError) bool { return lost(f, ops) })
	if len(kept) < len(failed) {
		e.subs.forget()
	}
	return kept
}

// lostSubscribers reports whether err is of a subscriber to messages of ops whose table is gone.
// The next publish leaves that subscriber out.
func (e *encoder) lostSubscribers(err error, ops []transport.Operation) bool {
	refused, ok := errors.AsType[*transport.DispatchError](err)
	if !ok || !slices.ContainsFunc(refused.Ops, func(f transport.OpError) bool { return lost(f, ops) }) {
		return false
	}
	e.subs.forget()
	return true
}

// lost reports whether the operation has failed because a subscriber's table does not exist.
func lost(failed transport.OpError, ops []transport.Operation) bool {
	return ops[failed.Index].Queue == "" && errors.Is(failed.Err, transport.ErrNoQueue)
}

// maxTorn is the number of parts of a batch that lose all conflicts: two of 200 units are found in
// so many.
const maxTorn = 2 * 9

// writer writes units in batches.
type writer struct {
	*core

	unusable  *unusable
	forwards  *forwards
	obstacles *obstacles
	detour    *detour

	units *batch.Batcher[*work]
	works sync.Pool // of *work
}

func newWriter(d *detour, f *forwards) *writer {
	wr := &writer{core: d.core, unusable: d.unusable, forwards: f, obstacles: d.obstacles, detour: d}
	wr.units = batch.New(batch.Config[*work]{
		Flush: wr.flush, Flushers: wr.cfg.Flushers, MaxItems: maxUnits, Weight: (*work).size, MaxWeight: maxFlushBytes,
	})
	wr.works.New = func() any { return new(work) }
	return wr
}

// work is a unit in the batcher. Works are pooled, and their slices reused.
type work struct {
	unit Unit
	buf  []byte // has the Headers of the unit's rows
	outcome
}

const keepBuf = 64 << 10 // a larger buf is not kept in the pool

func (wr *writer) newWork() *work { return wr.works.Get().(*work) } //nolint:errcheck // nothing else is in the pool

func (wr *writer) recycle(w *work) {
	if cap(w.buf) > keepBuf {
		w.buf = nil
	}
	clear(w.unit.Rows)
	*w = work{unit: Unit{Rows: w.unit.Rows[:0]}, buf: w.buf[:0]}
	wr.works.Put(w)
}

func (w *work) size() int { return w.unit.size() }

// do executes w in a batch with others. kept is true while the batcher still uses w, which must
// then not be recycled.
func (wr *writer) do(ctx context.Context, w *work) (kept bool, err error) {
	w.unit.of = &w.outcome
	err = wr.units.Do(ctx, w)
	if err == nil && len(w.diverted) > 0 {
		if wr.detour.take(ctx, w.diverted) {
			err = batch.ErrAbandoned
		} else {
			err = w.err
		}
	}
	switch {
	case errors.Is(err, batch.ErrClosed):
		return false, transport.ErrClosed
	case errors.Is(err, batch.ErrAbandoned):
		return true, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.Cause(ctx))
	}
	return false, err
}

// flush writes a batch of works.
func (wr *writer) flush(works []*work, errs []error) {
	units := make([]*Unit, len(works))
	for i, w := range works {
		units[i] = &w.unit
	}
	f := flushing{writer: wr}
	if wr.unusable.known.Load() > 0 {
		units = f.divert(units, wr.unusable.diverts)
	}
	if len(units) > 0 {
		f.write(units)
	}
	if f.fault != nil {
		fail(f.diverted, f.fault)
		f.diverted = nil
	}
	for _, u := range f.diverted {
		u.of.diverted = append(u.of.diverted, u)
	}
	for i, w := range works {
		errs[i] = w.err
	}
}

// flushing is one batch of the batcher.
//
// A fault may concern the rows for one queue only: a trigger of its table waits for a row that
// another transaction has locked, or the disk of its tablespace is full. A batch with such a row
// waits or fails as a whole. So flushing diverts the units for the queue to the detour, and writes
// the others at once.
//
// When a second statement fails because of a full disk or the like, the database itself is at
// fault: then the batch fails.
type flushing struct {
	writer   *writer
	diverted []*Unit
	torn     int   // parts of the batch that have lost a conflict at each try
	impeded  bool  // the units of one statement were diverted because of an error of class Impeded
	fault    error // of the database: no unit is written any more
}

// write flushes units. When they are refused, it leaves out those that send to a queue that takes
// no messages, or else flushes each half, so that in the end only the refused units fail.
func (f *flushing) write(units []*Unit) {
	wr := f.writer
	if f.fault != nil {
		fail(units, f.fault)
		return
	}
	err := wr.writeOnce(units, wr.store.Queues.Flush)
	if err == nil {
		wr.wakes.flushed(units)
		return
	}
	class := wr.store.Classify(err)
	switch class {
	case Conflict:
		f.torn++
	case Refused, Locked, Impeded:
	case Failed, Unavailable, Unknown:
		fail(units, wr.verdict(err))
		return
	}
	if errors.Is(err, ErrNoDelays) {
		kept, why := wr.forwards.keepAll(units)
		if kept && why == nil {
			f.write(units)
			return
		}
		err = cmp.Or(why, err)
	} else if wr.obstacles.look(err, units) {
		if rest, failed := wr.without(units); failed {
			if len(rest) > 0 {
				f.write(rest)
			}
			return
		}
	}
	if class == Locked || class == Impeded {
		if rest, known := f.divertFailed(err, units); known {
			if len(rest) > 0 {
				f.write(rest)
			}
			return
		}
	}
	if f.torn > maxTorn {
		fail(units, wr.verdict(err))
		return
	}
	if len(units) == 1 {
		first, second := units[0].halves()
		if second == nil {
			fail(units, wr.verdict(err))
			return
		}
		units = []*Unit{first, second}
	}
	half := len(units) / 2
	f.write(units[:half])
	f.write(units[half:])
}

// divert diverts the rows of Sends, and the other units, for queues of which belongs returns true.
// It returns the rest.
func (f *flushing) divert(units []*Unit, belongs func(queue string) bool) (rest []*Unit) {
	for _, u := range units {
		kept, diverted := u.split(belongs)
		rest, f.diverted = append(rest, kept...), append(f.diverted, diverted...)
	}
	return rest
}

// divertFailed diverts the units of the statement that has failed with err, and returns the rest.
// It reports whether the statement is known. A statement with rows for one queue is known to fail
// because of that queue.
func (f *flushing) divertFailed(err error, units []*Unit) (rest []*Unit, known bool) {
	failed, known := errors.AsType[*StatementError](err)
	switch {
	case known:
	case len(units) == 1 && !units[0].divides():
		failed = &StatementError{Units: units}
	default:
		return units, false
	}
	class := f.writer.store.Classify(err)
	if class == Impeded {
		if f.impeded {
			f.fault = f.writer.verdict(err)
			return units, true
		}
		f.impeded = true
	}
	queues := destinations(failed.Units...)
	if failed.Queue != "" {
		queues = []string{failed.Queue}
	}
	if len(queues) == 1 {
		f.writer.unusable.suspect(queues[0], class)
		return f.divert(units, func(queue string) bool { return queue == queues[0] }), true
	}
	of := make(map[*Unit]bool, len(failed.Units))
	for _, u := range failed.Units {
		of[u] = true
	}
	for _, u := range units {
		if of[u] {
			f.diverted = append(f.diverted, u)
		} else {
			rest = append(rest, u)
		}
	}
	return rest, true
}

// without fails the rows for queues that take no messages, and returns the rest of units. It
// reports whether it has failed any.
func (wr *writer) without(units []*Unit) (rest []*Unit, failed bool) {
	reasons := map[string]error{}
	for _, q := range destinations(units...) {
		if err := wr.unusable.of(q); err != nil {
			reasons[q] = err
		}
	}
	if len(reasons) == 0 {
		return units, false
	}
	for _, u := range units {
		kept, refused := u.split(func(queue string) bool { return reasons[queue] != nil })
		rest = append(rest, kept...)
		for _, part := range refused {
			part.refuse(reasons)
		}
	}
	return rest, true
}

// divides reports whether parts of u can be written by themselves.
func (u *Unit) divides() bool { return u.Verb == Send && len(u.Rows) > 1 }

// halves splits the rows of a Send, which do not depend on each other. For other units second is
// nil.
func (u *Unit) halves() (first, second *Unit) {
	if !u.divides() {
		return u, nil
	}
	half := len(u.Rows) / 2
	return &Unit{Rows: u.Rows[:half], of: u.of}, &Unit{Rows: u.Rows[half:], of: u.of}
}

// split returns the parts of u without a row for a queue for which is returns true, and the parts
// with such rows. A Send has parts of both sorts, in the order of its rows. Another unit is one
// part.
func (u *Unit) split(is func(queue string) bool) (without, with []*Unit) {
	belongs := func(r Row) bool { return is(r.Queue) }
	switch {
	case !slices.ContainsFunc(u.Rows, belongs):
		return []*Unit{u}, nil
	case u.Verb != Send:
		return nil, []*Unit{u}
	}
	for start := 0; start < len(u.Rows); {
		end, sort := start+1, is(u.Rows[start].Queue)
		for end < len(u.Rows) && is(u.Rows[end].Queue) == sort {
			end++
		}
		part := &Unit{Rows: u.Rows[start:end], of: u.of}
		if sort {
			with = append(with, part)
		} else {
			without = append(without, part)
		}
		start = end
	}
	return without, with
}

// refuse fails the rows of u for queues in reasons.
func (u *Unit) refuse(reasons map[string]error) {
	for i := range u.Rows {
		if err := reasons[u.Rows[i].Queue]; err != nil {
			u.of.failed = append(u.of.failed, transport.OpError{Index: u.Rows[i].Op, Err: err})
		}
	}
}
