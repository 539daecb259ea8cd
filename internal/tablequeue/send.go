package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/header"
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
