package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// RelayConfig configures a relay.
type RelayConfig struct {
	Outbox   *Outbox
	Conn     transport.Conn // of the broker
	Log      *slog.Logger
	Notifier *notify.Notifier
	// Queue is the queue of the endpoint. A published message that is refused has failed there.
	Queue string
	// AuditQueue is the short name of the audit queue; "" for none.
	AuditQueue string
	// Refusals moves messages that the broker refuses to the error queue.
	Refusals *audit.Refusals
	// RefusedFor is the time for which a message waits for a full queue.
	RefusedFor time.Duration
	// StopTimeout bounds the time after the end of Run's context; 0 for no bound.
	StopTimeout time.Duration
	// InOrder has the relay send the batches one after another.
	InOrder bool
	// Settling returns the context of a call that settles a row.
	Settling func() context.Context
	// Stage runs stage Relay, which sends operations.
	Stage pipeline.Func[*pipeline.Relay]
	// Unsent returns the failure of a message that a queue refused; "" for a published message.
	Unsent func(queue string, err error) error
}

// sender sends stored operations to the broker, and records how the destinations answer.
type sender struct {
	RelayConfig
	book *destination.Book

	sent        atomic.Int64 // messages that the broker has accepted
	refused     atomic.Int64 // messages that were moved to the error queue
	refusedRows refusedRows
	unreadable  unreadable
	removal     pump.Reception // of the removals of rows that were sent
}

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

// call is a call of the driver, with operations.
type call struct {
	ops    []transport.Operation
	owners []owner
	trial  string // the destination whose state the call decides about; else ""

	performed bool
	err       error
	expired   bool // the driver gave no answer in time
}

// errNoAnswer is the cause with which the context of a call ends.
var errNoAnswer = fmt.Errorf("no answer within %v", destination.AnswerWithin)

func (c *call) destinations() []string {
	var all []string
	for i := range c.ops {
		if to := destinationOf(&c.ops[i]); !slices.Contains(all, to) {
			all = append(all, to)
		}
	}
	return all
}

// byRow divides the operations of a call by their rows.
func (c *call) byRow() (calls []*call) {
	for i, own := range c.owners {
		if i == 0 || own.row != c.owners[i-1].row {
			calls = append(calls, new(call))
		}
		last := calls[len(calls)-1]
		last.ops, last.owners = append(last.ops, c.ops[i]), append(last.owners, own)
	}
	return calls
}

// dispatch sends operations. A panic of the driver or of a behavior must not end the process: the
// process would send the operations again after the next start.
func (r *sender) dispatch(ctx context.Context, ops []transport.Operation) (err error) {
	defer panics.Catch(&err)
	return r.Stage(ctx, &pipeline.Relay{Operations: ops})
}

// move sends operations in the commit that removes the row.
func (r *sender) move(row *storedRow, ops []transport.Operation) (err error) {
	defer panics.Catch(&err)
	completer, ok := row.delivery.(transport.Completer)
	if !ok {
		return errNotReplaced
	}
	return completer.CompleteWith(r.Settling(), ops)
}

// perform sends the operations of a call. perform ends the call if the broker is there and no answer
// comes in time. yield is called when the call takes long.
func (r *sender) perform(ctx context.Context, c *call, yield func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &callTimer{sender: r, call: c, yield: yield, cancel: cancel}
	t.mu.Lock()
	t.timer = time.AfterFunc(destination.SlowAfter, t.tick)
	t.mu.Unlock()
	c.err, c.performed = r.dispatch(ctx, c.ops), true
	c.expired = t.stop()
}

// callTimer measures the time of a call.
type callTimer struct {
	sender *sender
	call   *call
	yield  func()
	cancel context.CancelCauseFunc

	mu      sync.Mutex // guards the rest
	timer   *time.Timer
	over    bool
	expired bool
	passed  time.Duration // since the broker was away last
	slow    []string      // the destinations of the call, if the call is slow
}

// tick is called each [destination.SlowAfter], until the call is over or expires.
func (t *callTimer) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	if t.passed += destination.SlowAfter; t.sender.away() {
		t.passed = 0
	}
	if t.passed == destination.SlowAfter && t.slow == nil {
		t.slow = t.call.destinations()
		t.sender.book.Slow(t.slow)
		t.yield()
	}
	if t.passed >= destination.AnswerWithin {
		t.expired = true
		t.cancel(errNoAnswer)
		return
	}
	t.timer.Reset(destination.SlowAfter)
}

// stop is called at the end of the call, and reports whether the call has expired.
func (t *callTimer) stop() (expired bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.timer.Stop()
	if t.slow != nil {
		t.sender.book.Fast(t.slow)
	}
	return t.expired
}

// failures returns the errors of the operations of a dispatch, by index.
func failures(err error, total int) map[int]error {
	if err == nil {
		return nil
	}
	refusal, ok := errors.AsType[*transport.DispatchError](err)
	if !ok {
		refusal, _ = errors.AsType[*transport.DispatchError](transport.FailAll(total, err))
	}
	failed := make(map[int]error, len(refusal.Ops))
	for _, op := range refusal.Ops {
		failed[op.Index] = op.Err
	}
	return failed
}

// sendAlone sends a single operation, unless the destination takes no messages at the moment.
func (r *sender) sendAlone(ctx context.Context, op transport.Operation, yield func()) error {
	c, to := &call{ops: []transport.Operation{op}}, destinationOf(&op)
	switch r.book.Admit(to) {
	case destination.Wait:
		return errWaits
	case destination.Alone, destination.Probe:
		c.trial = to
	case destination.Together:
	}
	r.perform(ctx, c, yield)
	r.judge(ctx, c, failures(c.err, 1))
	return c.err
}

// errWaits is the error of an operation that waits, because the destination does not answer.
var errWaits = fmt.Errorf("%w: its state is in the health of the outbox", transport.ErrUnreachable)

// away reports whether the broker accepts nothing at the moment, or the connection is lost.
func (r *sender) away() bool {
	if b, ok := r.Conn.(transport.Blocker); ok && b.Blocked() {
		return true
	}
	c, ok := r.Conn.(transport.ConnectionReporter)
	return ok && !c.Connected()
}

// judge records the outcomes of a call for the destinations.
func (r *sender) judge(ctx context.Context, c *call, failed map[int]error) {
	if c.err == nil && r.book.Calm() {
		r.book.AllAnswered()
		return
	}
	for to, a := range r.answers(ctx, c, failed) {
		if a.kind == destination.Well {
			r.answered(ctx, to)
			continue
		}
		if _, begins := r.book.Failed(to, a.kind, a.err); begins {
			r.Log.WarnContext(ctx, "a destination of the outbox accepts no messages: they wait, and others are sent",
				slog.String("queue", to), slog.String("problem", a.kind.String()), slog.Any("error", a.err))
		}
	}
	if c.trial != "" {
		r.book.End(c.trial)
	}
}

// answer is the worst outcome of the operations for a destination.
type answer struct {
	kind destination.Kind
	err  error
}

// answers returns the answers of the destinations of a call, except destinations about which the
// call says nothing.
func (r *sender) answers(ctx context.Context, c *call, failed map[int]error) map[string]answer {
	_, answered := errors.AsType[*transport.DispatchError](c.err)
	answered = answered || c.err == nil
	worst := map[string]answer{}
	for i := range c.ops {
		err := failed[i]
		kind, known := r.kindOf(ctx, c, &c.ops[i], err)
		if !known || kind == destination.Well && !answered {
			continue
		}
		if kind == destination.Silent {
			err = errNoAnswer
		}
		to := destinationOf(&c.ops[i])
		if before, seen := worst[to]; !seen || kind > before.kind {
			worst[to] = answer{kind, err}
		}
	}
	return worst
}

// kindOf returns the state of a destination after the error of an operation, and reports whether the
// error says anything about the destination.
func (r *sender) kindOf(
	ctx context.Context, c *call, op *transport.Operation, err error,
) (kind destination.Kind, known bool) {
	_, busy := errors.AsType[*transport.BusyError](err)
	switch {
	case busy:
		return destination.Busy, true
	case r.mayBeFull(op, err):
		return destination.Full, true
	case !copies.Unanswered(err):
		return destination.Well, true
	case c.expired &&
		(!errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrOutcomeUnknown)):
		return destination.Silent, true
	case r.Outbox.Own, ctx.Err() != nil, errors.Is(err, transport.ErrClosed), r.away():
		return destination.Well, false
	}
	return destination.Unreachable, true
}

func (r *sender) answered(ctx context.Context, to string) {
	was := r.book.Answered(to)
	if was.Kind == destination.Well {
		return
	}
	r.Log.InfoContext(ctx, "a destination of the outbox answers again: its messages are sent",
		slog.String("queue", to), slog.Duration("after", time.Since(was.Since)),
		slog.Int64("rows", was.Rows))
}

// keeps reports whether an operation that failed with err stays in the outbox. An operation that the
// broker refuses moves to the error queue, and so holds up no further operation.
func (r *sender) keeps(
	ctx context.Context, op *transport.Operation, own *owner, err error, yield func(),
) bool {
	if errors.Is(err, transport.ErrNoQueue) { // further messages for the queue fail before the commit
		r.Outbox.destinations.expect(op.Queue, 0)
	}
	final := copies.Permanent(err)
	if own.waits = forBroker; copies.Unanswered(err) {
		if r.book.Unwell(destinationOf(op)) {
			own.waits = forDestination
		}
		return true
	}
	if r.mayBeFull(op, err) {
		if own.waits = forDestination; own.fullFor(r.Outbox.now()) < r.RefusedFor {
			return true
		}
		final = true
	}
	if own.tries++; !final && own.tries < settle.Tries {
		return true
	}
	return !r.discards(ctx, op, err) && !r.moves(ctx, op, own, err, yield)
}

// discards reports whether a refused operation is a notice to ServiceControl, which is lost.
func (r *sender) discards(ctx context.Context, op *transport.Operation, err error) bool {
	if op.Message.Headers.Get(header.ControlMessage) == "" {
		return false
	}
	r.Log.WarnContext(ctx, "a notice to ServiceControl was refused and is discarded: the audit copy reports the success",
		slog.String("queue", op.Queue), slog.Any("error", err))
	return true
}

// moves moves a refused operation to the error queue, and reports success.
func (r *sender) moves(
	ctx context.Context, op *transport.Operation, own *owner, err error, yield func(),
) bool {
	moved := r.toErrorQueue(ctx, op, err, yield)
	if moved == nil {
		r.refused.Add(1)
		return true
	}
	if !copies.Unanswered(moved) {
		r.refusedRows.add(op, moved)
	}
	if !copies.Unanswered(moved) || r.book.Unwell(r.Refusals.ErrorQueue) {
		own.waits = forErrorQueue
	}
	if !errors.Is(moved, errWaits) {
		r.Log.ErrorContext(ctx, "the broker and the error queue refused a message of the outbox: it stays there",
			slog.String("queue", op.Queue), slog.Any("error", errors.Join(err, moved)))
	}
	return false
}

// mayBeFull reports whether the destination of an operation that failed with err is full. Then the
// message waits, unless the message is an audit copy or a notice to ServiceControl.
func (r *sender) mayBeFull(op *transport.Operation, err error) bool {
	return errors.Is(err, transport.ErrFull) && !copies.Unanswered(err) && r.RefusedFor > 0 &&
		op.Message.Headers.Get(header.ControlMessage) == "" && !r.isAudit([]transport.Operation{*op})
}

// toErrorQueue moves the message of an operation that failed with cause to the error queue. The copy
// names the destination as the place of the failure, so that a return brings the message there.
func (r *sender) toErrorQueue(
	ctx context.Context, op *transport.Operation, cause error, yield func(),
) error {
	refused := r.Refusals.Of(op.Message, cmp.Or(op.Queue, r.Queue), r.Unsent(op.Queue, cause), "outbox")
	err := refused.ToErrorQueue(func(moved transport.Operation) error {
		return copies.Single(r.sendAlone(ctx, moved, yield))
	})
	if err != nil {
		return fmt.Errorf("error queue %q: %w", r.Refusals.ErrorQueue, err)
	}
	refused.Report(ctx, "a message of the outbox was refused and moved to the error queue")
	return nil
}

// isAudit reports whether operations are copies for the audit queue alone.
func (r *sender) isAudit(ops []transport.Operation) bool {
	return r.AuditQueue != "" && !slices.ContainsFunc(ops, func(op transport.Operation) bool {
		return r.Refusals.Names.Of(op.Queue) != r.AuditQueue
	})
}

// noteRemoval records whether rows that were sent can be removed.
func (r *sender) noteRemoval(ctx context.Context, err error) {
	_, before := r.removal.Failing()
	_ = r.removal.Note(err) // Health reports the failure, and the line below
	if before == nil && err != nil {
		r.Log.WarnContext(ctx, "messages of the outbox were sent, and cannot be removed from it at the moment: "+
			"it is tried again, because they would be sent again", slog.Any("error", work.WithAdvice(err)))
	}
}

// queuesRefuse is the time after which the outbox sends a message again that the destination and the
// error queue have refused.
const queuesRefuse = time.Minute

// refusedRows are the messages of the outbox that the destination and the error queue have refused.
// A message that another instance sends is forgotten after a while.
type refusedRows struct {
	count atomic.Int32 // of ids: a sent message takes no lock while there are none

	mu  sync.Mutex // guards the rest
	ids map[refusedID]time.Time
	err error // the last refusal of the error queue
}

// refusedID is the id of a message with the destination: a program may give messages for different
// queues the same id.
type refusedID struct{ destination, message string }

func refusedIDOf(op *transport.Operation) refusedID {
	return refusedID{destinationOf(op), op.Message.ID}
}

// maxRefusedRows bounds the ids. Further refused messages are not counted.
const maxRefusedRows = 1000

// add adds the message of an operation that the error queue has refused with err.
func (r *refusedRows) add(op *transport.Operation, err error) {
	id := refusedIDOf(op)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids == nil {
		r.ids = map[refusedID]time.Time{}
	}
	r.err = err
	if _, known := r.ids[id]; known || len(r.ids) < maxRefusedRows {
		r.ids[id] = time.Now()
	}
	r.count.Store(int32(len(r.ids))) //nolint:gosec // at most maxRefusedRows
}

// remove removes the message of an operation that is no longer in the outbox.
func (r *refusedRows) remove(op *transport.Operation) {
	if r.count.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ids, refusedIDOf(op))
	r.count.Store(int32(len(r.ids))) //nolint:gosec // at most maxRefusedRows
}

func (r *refusedRows) removeAll(ops []transport.Operation) {
	for i := range ops {
		r.remove(&ops[i])
	}
}

// refusal returns the last refusal while messages wait because of refusals. Each is tried again
// after queuesRefuse.
func (r *refusedRows) refusal() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.ids, func(_ refusedID, refused time.Time) bool {
		return time.Since(refused) > 2*queuesRefuse
	})
	r.count.Store(int32(len(r.ids))) //nolint:gosec // at most maxRefusedRows
	if len(r.ids) == 0 {
		return nil
	}
	return r.err
}

// unreadable records the rows that cannot be decoded, and logs such a row at most once a minute.
type unreadable struct {
	mu     sync.Mutex // guards the rest
	err    error      // of the last row
	seen   time.Time
	logged time.Time
}

// unreadableFor is the least time for which an unreadable row is reported after the receipt.
const unreadableFor = 5 * time.Minute

func (u *unreadable) add(ctx context.Context, log *slog.Logger, id string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = fmt.Errorf("row %s: %w", id, err)
	u.seen = time.Now()
	if time.Since(u.logged) < time.Minute {
		return
	}
	u.logged = u.seen
	log.ErrorContext(ctx, "a message in the outbox cannot be read: it stays there, and others are sent",
		slog.String("row", id), slog.Any("error", err))
}

// found returns the last error while the row may be there, and nil otherwise. Some instance receives
// the row again whenever the lease has ended. Without leases the row is received once.
func (u *unreadable) found(lease time.Duration) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if lease > 0 && time.Since(u.seen) > max(unreadableFor, 3*lease) {
		return nil
	}
	return u.err
}
