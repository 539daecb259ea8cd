package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	maxRows       = 500     // of one Dispatch in one unit
	maxChunkBytes = 8 << 20 // likewise
)

// sender sends messages that no delivery is completed with.
type sender struct {
	*core

	encoder *encoder
	writer  *writer
}

// Dispatch implements [transport.Conn]. The messages are inserted in a batch with those that others
// send and settle at the same time. Delayed messages have receipts.
func (s *sender) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	w := s.writer.newWork()
	failed := s.encoder.addRows(ctx, w, ops)
	wantSeqs(w.unit.Rows, ops)
	var receipts []transport.Receipt
	kept := false
	for rows := w.unit.Rows; len(rows) > 0; {
		n := chunk(rows)
		var bad []transport.OpError
		if kept, bad = s.send(ctx, w, rows[:n]); kept {
			failed = append(append(failed, bad...), failAll(rows[n:], context.Cause(ctx))...)
			break
		}
		failed = append(failed, bad...)
		receipts = addReceipts(receipts, rows[:n], len(ops))
		rows = rows[n:]
	}
	if !kept {
		s.writer.recycle(w)
	}
	return receipts, dispatchError(s.encoder.withoutLost(failed, ops), len(ops))
}

// send inserts rows, which are a part of the rows of w.
func (s *sender) send(ctx context.Context, w *work, rows []Row) (kept bool, failed []transport.OpError) {
	all := w.unit.Rows
	w.unit.Rows, w.failed = rows, nil
	kept, err := s.writer.do(ctx, w)
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

// Check implements [transport.Checker].
func (s *sender) Check(op *transport.Operation) error {
	if _, err := checked(op); err != nil || op.Queue == "" {
		return err
	}
	return s.store.Queues.Check(s.shortName(op.Queue))
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
func (s *sender) Cancel(ctx context.Context, receipt string) error {
	number, queue, ok := strings.Cut(receipt, "@")
	queue = s.shortName(queue)
	seq, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || s.store.Queues.Check(queue) != nil {
		return fmt.Errorf("cancel: receipt %.80q is none of this transport: %w", receipt, transport.ErrNotFound)
	}
	done, err := ask(ctx, s.core, nil, func(ctx context.Context) (bool, error) { return s.store.Queues.Cancel(ctx, queue, seq) })
	if err == nil && !done {
		err = fmt.Errorf("cancel message %d of queue %q: %w", seq, queue, transport.ErrNotFound)
	}
	return err
}

// DispatchIn implements [transport.TxDispatcher]. The rows are inserted on the connection of tx;
// other statements use the store's connections.
func (s *sender) DispatchIn(ctx context.Context, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
	for try := 1; ; try++ {
		receipts, err := s.dispatchIn(ctx, tx, ops)
		again := s.encoder.lostSubscribers(err, ops) || errors.Is(err, ErrNoDelays)
		if !again || try == maxLost {
			return receipts, err
		}
	}
}

func (s *sender) dispatchIn(ctx context.Context, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
	w := s.writer.newWork()
	defer s.writer.recycle(w)
	err := s.call(ctx, nil, func(ctx context.Context) error { return dispatchError(s.encoder.addRows(ctx, w, ops), len(ops)) })
	if err != nil {
		return nil, err
	}
	wantSeqs(w.unit.Rows, ops)
	if err := s.store.Queues.InsertIn(ctx, tx, w.unit.Rows); err != nil {
		return nil, s.encoder.blame(ctx, err, &w.unit, len(ops))
	}
	return addReceipts(nil, w.unit.Rows, len(ops)), nil
}
