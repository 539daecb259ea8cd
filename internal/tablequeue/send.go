package tablequeue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	maxRows       = 500     // of one Dispatch in one unit
	maxChunkBytes = 8 << 20 // likewise
)

// Dispatch implements [transport.Conn]. The messages are inserted in a batch with those that others
// send and settle at the same time. Delayed messages have receipts.
func (c *Conn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	w := c.newWork()
	failed := c.addRows(ctx, w, ops)
	wantSeqs(w.unit.Rows, ops)
	var receipts []transport.Receipt
	kept := false
	for rows := w.unit.Rows; len(rows) > 0; {
		n := chunk(rows)
		var bad []transport.OpError
		if kept, bad = c.send(ctx, w, rows[:n]); kept {
			failed = append(append(failed, bad...), failAll(rows[n:], context.Cause(ctx))...)
			break
		}
		failed = append(failed, bad...)
		receipts = addReceipts(receipts, rows[:n], len(ops))
		rows = rows[n:]
	}
	if !kept {
		c.recycle(w)
	}
	return receipts, dispatchError(c.withoutLost(failed, ops), len(ops))
}

// withoutLost returns failed without the copies for subscribers whose queue is gone. The other
// copies were sent.
func (c *Conn) withoutLost(failed []transport.OpError, ops []transport.Operation) []transport.OpError {
	kept := slices.DeleteFunc(failed, func(f transport.OpError) bool { return lost(f, ops) })
	if len(kept) < len(failed) {
		c.subs.forget()
	}
	return kept
}

// send inserts rows, which are a part of the rows of w.
func (c *Conn) send(ctx context.Context, w *work, rows []Row) (kept bool, failed []transport.OpError) {
	all := w.unit.Rows
	w.unit.Rows, w.failed = rows, nil
	kept, err := c.do(ctx, w)
	if kept {
		return true, failAll(rows, err)
	}
	w.unit.Rows = all
	if err != nil {
		return false, failAll(rows, err)
	}
	return false, w.failed
}

// chunk returns the number of rows that one unit takes.
func chunk(rows []Row) int {
	bytes := 0
	for i := range rows {
		bytes += len(rows[i].Headers) + len(rows[i].Body)
		if i > 0 && (i == maxRows || bytes > maxChunkBytes) {
			return i
		}
	}
	return len(rows)
}

// addRows appends the rows of ops to w, and returns the operations that cannot be sent.
func (c *Conn) addRows(ctx context.Context, w *work, ops []transport.Operation) (failed []transport.OpError) {
	for i := range ops {
		if err := c.addOp(ctx, w, i, &ops[i]); err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	w.unit.Rows = lastOfEach(w.unit.Rows)
	return failed
}

var errNoDestination = errors.New("operation without message, or with neither queue nor types")

// Check implements [transport.Checker].
func (c *Conn) Check(op *transport.Operation) error {
	if _, err := checked(op); err != nil || op.Queue == "" {
		return err
	}
	return c.store.Check(c.ShortName(op.Queue))
}

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

func (c *Conn) addOp(ctx context.Context, w *work, index int, op *transport.Operation) error {
	headers, err := checked(op)
	if err != nil {
		return err
	}
	m := op.Message
	if m == nil {
		return c.addRow(ctx, w, Row{Queue: op.Queue, Op: index, Name: hashOf(op.Name), Removes: true})
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
		return c.addRow(ctx, w, row)
	}
	queues, err := c.subs.of(ctx, op.Types)
	if err != nil {
		return err
	}
	for _, row.Queue = range queues {
		err := c.addRow(ctx, w, row)
		if errors.Is(err, transport.ErrNoQueue) { // since the subscriptions were read
			c.subs.forget()
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

// storable returns id as text that every database can store. A receiver uses the id in the headers.
func storable(id string) string {
	if utf8.ValidString(id) && strings.IndexByte(id, 0) < 0 {
		return id
	}
	return strings.ReplaceAll(strings.ToValidUTF8(id, "\ufffd"), "\x00", "\ufffd")
}

func (c *Conn) addRow(ctx context.Context, w *work, row Row) error {
	row.Queue = c.ShortName(row.Queue)
	if err := c.store.Check(row.Queue); err != nil {
		return err
	}
	if row.Named() && c.isForeign(row.Queue) {
		return fmt.Errorf("queue %q: %w", row.Queue, ErrNoTimers)
	}
	if c.foreign(&row) {
		if err := c.keep(ctx, &row); err != nil {
			return err
		}
	}
	if err := c.unusable.of(row.Queue); err != nil {
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

// wantSeqs asks for the seqs of the rows that get a receipt.
func wantSeqs(rows []Row, ops []transport.Operation) {
	for i := range rows {
		r := &rows[i]
		r.WantSeq = !r.Named() && ops[r.Op].Queue != "" && (r.After > 0 || !r.At.IsZero())
	}
}

// addReceipts sets the receipts of the rows that have got their Seq.
func addReceipts(receipts []transport.Receipt, rows []Row, total int) []transport.Receipt {
	for i := range rows {
		r := &rows[i]
		if r.Seq == 0 {
			continue
		}
		if receipts == nil {
			receipts = make([]transport.Receipt, total)
		}
		receipts[r.Op].Cancel = strconv.FormatInt(r.Seq, 10) + "@" + r.Queue
	}
	return receipts
}

// Cancel implements [transport.Canceler].
func (c *Conn) Cancel(ctx context.Context, receipt string) error {
	number, queue, ok := strings.Cut(receipt, "@")
	queue = c.ShortName(queue)
	seq, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || c.store.Check(queue) != nil {
		return fmt.Errorf("cancel: receipt %.80q is none of this transport: %w", receipt, transport.ErrNotFound)
	}
	done, err := ask(ctx, c, nil, func(ctx context.Context) (bool, error) { return c.store.Cancel(ctx, queue, seq) })
	if err == nil && !done {
		err = fmt.Errorf("cancel message %d of queue %q: %w", seq, queue, transport.ErrNotFound)
	}
	return err
}

const (
	maxFlushBytes = 16 << 20 // headers and bodies in one Flush, unless one unit alone has more
	conflicts     = 5        // times that a batch is tried after a conflict
	maxTorn       = 2 * 9    // parts of a batch that lose all of these: two of 200 units are found in so many

	// A server that restarts ends all connections, which is noticed when one is used: a batch may
	// meet as many as the pool has.
	reconnects   = 2           // times that a batch is tried again
	maxReconnect = time.Second // after this time it is not
)

// work is a unit in the batcher. Works are pooled, and their slices reused.
type work struct {
	unit   Unit
	buf    []byte              // has the Headers of the unit's rows
	failed []transport.OpError // rows that were refused, by operation
	err    error               // of the unit as a whole

	diverted []*Unit // parts of the unit that the detour is to write
}

const keepBuf = 64 << 10 // a larger buf is not kept in the pool

func (c *Conn) newWork() *work { return c.works.Get().(*work) } //nolint:errcheck // nothing else is in the pool

func (c *Conn) recycle(w *work) {
	if cap(w.buf) > keepBuf {
		w.buf = nil
	}
	clear(w.unit.Rows)
	*w = work{unit: Unit{Rows: w.unit.Rows[:0]}, buf: w.buf[:0]}
	c.works.Put(w)
}

// do executes w in a batch with others. kept is true while the batcher still uses w, which must
// then not be recycled.
func (c *Conn) do(ctx context.Context, w *work) (kept bool, err error) {
	w.unit.of = w
	err = c.units.Do(ctx, w)
	if err == nil && len(w.diverted) > 0 {
		if c.takeDetour(ctx, w) {
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

// write flushes units. When they are refused, it leaves out those that send to a queue that takes
// no messages, or else flushes each half, so that in the end only the refused units fail.
func (f *flushing) write(units []*Unit) {
	c := f.conn
	if f.fault != nil {
		fail(units, f.fault)
		return
	}
	err := c.writeOnce(units, c.store.Flush)
	if err == nil {
		c.wakes.flushed(units)
		return
	}
	class := c.store.Classify(err)
	switch class {
	case Conflict:
		f.torn++
	case Refused, Locked, Impeded:
	case Failed, Unavailable, Unknown:
		fail(units, c.verdict(err))
		return
	}
	if errors.Is(err, ErrNoDelays) {
		kept, why := c.keepAll(units)
		if kept && why == nil {
			f.write(units)
			return
		}
		err = cmp.Or(why, err)
	} else if c.look(err, units) {
		if rest, failed := c.without(units); failed {
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
		fail(units, c.verdict(err))
		return
	}
	if len(units) == 1 {
		first, second := units[0].halves()
		if second == nil {
			fail(units, c.verdict(err))
			return
		}
		units = []*Unit{first, second}
	}
	half := len(units) / 2
	f.write(units[:half])
	f.write(units[half:])
}

// look finds the queues because of which units were refused.
func (c *Conn) look(err error, units []*Unit) bool {
	ctx, cancel := context.WithTimeout(c.work, maxWait)
	defer cancel()
	return c.find(ctx, err, destinations(units...))
}

// writeOnce writes units by flush: again after a conflict, or on connections that the server had
// ended.
func (c *Conn) writeOnce(units []*Unit, flush func(context.Context, []*Unit) error) error {
	pause := backoff.Backoff{Min: 2 * time.Millisecond, Max: 50 * time.Millisecond}
	began := time.Now()
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(c.work, maxWait)
		err := flush(ctx, units)
		cancel()
		if err == nil {
			return nil
		}
		forgetResults(units)
		switch c.store.Classify(err) {
		case Conflict:
			if try == conflicts {
				return err
			}
		case Unavailable:
			if try > reconnects || time.Since(began) > maxReconnect {
				return err
			}
		case Failed, Refused, Locked, Impeded, Unknown:
			return err
		}
		_ = pause.Wait(c.work)
	}
}

// forgetResults clears the results of units that were rolled back: the seqs of rows, which are no
// receipts, and lost leases and known keys.
func forgetResults(units []*Unit) {
	for _, u := range units {
		u.Lost, u.Handled = false, false
		for i := range u.Rows {
			u.Rows[i].Seq = 0
		}
	}
}

// verdict returns err with the error of package transport that its class means.
func (c *Conn) verdict(err error) error {
	switch c.store.Classify(err) {
	case Unknown:
		return fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err)
	case Unavailable, Impeded:
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	case Failed, Refused, Conflict, Locked:
	}
	return err
}

func fail(units []*Unit, err error) {
	for _, u := range units {
		if u.Verb != Send {
			u.of.err = err
			continue
		}
		for i := range u.Rows {
			u.of.failed = append(u.of.failed, transport.OpError{Index: u.Rows[i].Op, Err: err})
		}
	}
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

func (w *work) size() int { return w.unit.size() }

// size returns the bytes of the headers and bodies of u.
func (u *Unit) size() int {
	n := 0
	for i := range u.Rows {
		n += len(u.Rows[i].Headers) + len(u.Rows[i].Body)
	}
	return n
}

// DispatchIn implements [transport.TxDispatcher]. The rows are inserted on the connection of tx;
// other statements use the store's connections.
func (c *Conn) DispatchIn(ctx context.Context, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
	for try := 1; ; try++ {
		receipts, err := c.dispatchIn(ctx, tx, ops)
		again := c.lostSubscribers(err, ops) || errors.Is(err, ErrNoDelays)
		if !again || try == maxLost {
			return receipts, err
		}
	}
}

func (c *Conn) dispatchIn(ctx context.Context, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
	w := c.newWork()
	defer c.recycle(w)
	err := c.call(ctx, nil, func(ctx context.Context) error { return dispatchError(c.addRows(ctx, w, ops), len(ops)) })
	if err != nil {
		return nil, err
	}
	wantSeqs(w.unit.Rows, ops)
	if err := c.store.InsertIn(ctx, tx, w.unit.Rows); err != nil {
		return nil, c.blame(ctx, err, &w.unit, len(ops))
	}
	return addReceipts(nil, w.unit.Rows, len(ops)), nil
}

// ErrNoTimers is wrapped by the error of a named row for a queue without timers. A store whose
// tables may lack what named rows need returns it from Flush, Complete and InsertIn.
var ErrNoTimers = errors.New(`it has no timers: run the endpoint's installer, or the script that "holdfast sql script" prints`)

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
