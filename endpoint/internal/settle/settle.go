// Package settle completes, returns or moves a delivery, and keeps the state of the delivery.
package settle

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// Tries is how often a settling call is made while the broker does not answer.
	Tries = 3

	// RequeueFailed is the line of the log for a message that could not be requeued.
	RequeueFailed  = "a message could not be requeued: the broker delivers it again when its lease ends"
	completeFailed = "a message was handled but could not be completed: the broker delivers it again"
	releaseFailed  = "a message could not be released: the broker delivers it again when its lease ends"
)

// ErrSettled is the error of a call for a message that is settled already, as after a behavior that
// calls next twice.
var ErrSettled = errors.New("the message is settled already: nothing more can be done about it")

// Settler has what the deliveries of an endpoint share.
type Settler struct {
	Conn      transport.Conn
	Deadlines Deadlines // of settling calls
	Log       *slog.Logger
	Failures  *failurelog.Log
	OnError   func()                 // called when a message could not be completed
	Config    *recoverability.Config // with the retries that the endpoint can do
	Instance  string                 // of the endpoint
	// TxElsewhere: the transactions of messages are in another database than the messages.
	TxElsewhere bool
}

// Context returns the context of a settling call, which is not the handler's context: settling
// continues when the handler's context has ended.
func (s *Settler) Context() context.Context { return s.Deadlines.context() }

// Send sends operations that are no unit with the completion of a message.
func (s *Settler) Send(ops []transport.Operation) error {
	if len(ops) == 0 {
		return nil
	}
	_, err := s.Conn.Dispatch(s.Context(), ops)
	return err //nolint:wrapcheck // the driver names itself
}

// Undo rolls a transaction of the message with an id back. A database that cannot be reached does
// so itself.
func (s *Settler) Undo(ctx context.Context, tx transport.Tx, id string) {
	if err := tx.Rollback(s.Context()); err != nil {
		s.Log.LogAttrs(ctx, slog.LevelWarn, "a transaction could not be rolled back",
			slog.String("message", errtree.Cut(id, MaxLogged)), slog.Any("error", err))
	}
}

// Delivery is a delivery of a message. A delivery is settled once, and all calls that settle a
// delivery are here.
//
//	received ──▶ completedFirst     transaction mode None
//	    │              │
//	    └──────┬───────┘
//	           ├──▶ settled         completed, moved, retried, postponed or released
//	           ├──▶ leaseLost       another consumer has the message, or will have the message
//	           └──▶ abandoned       the broker did not answer, and delivers the message again
//
// A call that fails leaves the state unchanged, so that another call may follow. A Delivery is not
// safe for concurrent use.
type Delivery struct {
	*Settler
	Message

	Received transport.Delivery
	Slot     *pump.Slot
	// FailureCounted: the failure of the message is counted, so that a lost lease does not count.
	FailureCounted bool
	// Inline is the number of retries within this delivery.
	Inline int
	// HoldUntil is the time at which the message must have left, because the broker is about to
	// deliver the message again; zero is never.
	HoldUntil time.Time

	state state
	busy  *transport.BusyError // why the last call of Complete failed, if a queue takes no messages
}

type state int8

const (
	received state = iota
	completedFirst
	settled
	leaseLost
	abandoned
)

// Over reports whether nothing more can be done about the message.
func (d *Delivery) Over() bool { return d.state >= settled }

// CompletedFirst reports whether the message was completed before the handlers ran. Such a message
// cannot return to its queue.
func (d *Delivery) CompletedFirst() bool { return d.state == completedFirst }

// LostLease reports whether the lease of the delivery was lost.
func (d *Delivery) LostLease() bool { return d.state == leaseLost }

// CompleteFirst completes the message before the handlers run, and reports success. After a failure
// no handler may run.
func (d *Delivery) CompleteFirst(ctx context.Context) bool {
	d.Slot.StopRenewing() // the lease ends here, and that is no loss
	if err := d.Received.Complete(d.Context()); err != nil {
		d.Abandon(ctx, "a message could not be completed first: it is not handled now", err)
		return false
	}
	d.state = completedFirst
	return true
}

// Complete sends ops and completes the message: in tx unless tx is nil, as one unit if the
// transport can, and otherwise one after the other. A lost lease is no error.
func (d *Delivery) Complete(ctx context.Context, tx transport.Tx, ops []transport.Operation) error {
	if d.Over() {
		return ErrSettled
	}
	return d.failed(d.complete(ctx, tx, ops))
}

// SendAhead sends operations before the operations of Complete, if the transport cannot complete a
// message and send in one unit.
func (d *Delivery) SendAhead(ops []transport.Operation) error {
	if d.Over() {
		return ErrSettled
	}
	return d.failed(d.Send(ops))
}

// failed records why the message could not be completed, and returns err.
func (d *Delivery) failed(err error) error {
	if d.busy = nil; err != nil {
		d.OnError()
		errors.As(err, &d.busy)
	}
	return err
}

func (d *Delivery) complete(ctx context.Context, tx transport.Tx, ops []transport.Operation) error {
	if tx != nil {
		return d.end(ctx, tx.Complete(d.Context(), ops))
	}
	if d.CompletedFirst() {
		return d.end(ctx, d.Send(ops))
	}
	completer, ok := d.Received.(transport.Completer)
	if ok && len(ops) > 0 {
		return d.Settle(ctx, func(ctx context.Context) error { return completer.CompleteWith(ctx, ops) })
	}
	if err := d.Send(ops); err != nil {
		return err
	}
	// The operations are sent. The message does not fail if it cannot be completed.
	d.Try(ctx, d.Received.Complete, completeFailed)
	return nil
}

// IsUnit reports whether completing the message and sending are one unit.
func (d *Delivery) IsUnit(tx transport.Tx) bool {
	if tx != nil {
		return !d.TxElsewhere
	}
	_, ok := d.Received.(transport.Completer)
	return ok && !d.CompletedFirst()
}

// Retry returns the message to its queue. The broker counts the delivery.
func (d *Delivery) Retry(ctx context.Context) { d.Try(ctx, d.Received.Retry, RequeueFailed) }

// Release returns the message to its queue untouched.
func (d *Delivery) Release(ctx context.Context) { d.Try(ctx, d.Received.Release, releaseFailed) }

// BusyQueue returns the queue that took no messages at the last Complete, if the transport can
// postpone the message until the queue takes messages; "" otherwise.
func (d *Delivery) BusyQueue() string {
	if _, ok := d.Received.(transport.Postponer); !ok || d.busy == nil || d.CompletedFirst() {
		return ""
	}
	return d.busy.Queue
}

// Postpone returns the message to its queue until the busy queue takes messages again. The delivery
// does not count.
func (d *Delivery) Postpone(ctx context.Context, busyQueue string) {
	p := d.Received.(transport.Postponer) //nolint:errcheck // BusyQueue has seen that it is one
	postpone := func(ctx context.Context) error { return p.Postpone(ctx, busyQueue) }
	if d.Try(ctx, postpone, RequeueFailed) {
		d.Log.DebugContext(ctx, "a message waits until another queue takes messages, without an attempt used up",
			slog.String("message", d.LogID()), slog.String("queue", busyQueue))
	}
}

// Try settles the message by a verb, and abandons the message when the verb fails.
func (d *Delivery) Try(ctx context.Context, verb func(context.Context) error, warning string) bool {
	err := d.Settle(ctx, verb)
	if err != nil {
		d.Abandon(ctx, warning, err)
	}
	return err == nil
}

// Abandon leaves the message to the broker, because of err.
func (d *Delivery) Abandon(ctx context.Context, warning string, err error) {
	d.state = abandoned
	d.LogError(ctx, slog.LevelWarn, warning, err)
}

// Lost records that a message is lost: the message was completed first, and could not be moved
// after its failure. The caller has logged the loss.
func (d *Delivery) Lost() { d.state = abandoned }

// Settle calls a settling verb, again if the broker could not be reached. A refused operation and a
// lost lease are final, and a lost lease is no error. The verb has a context of its own: settling
// continues when ctx has ended.
func (d *Delivery) Settle(ctx context.Context, verb func(context.Context) error) error {
	own := d.Context()
	err := verb(own)
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for try := 1; try < Tries && isRepeatable(err) && pause.Wait(own) == nil; try++ {
		err = verb(own)
	}
	return d.end(ctx, err)
}

func isRepeatable(err error) bool {
	_, refused := errors.AsType[*transport.DispatchError](err)
	return err != nil && !refused && !errors.Is(err, transport.ErrLeaseLost) &&
		!errors.Is(err, transport.ErrAlreadyHandled)
}

// end moves to the state that err means for the message, and returns err if the message is not
// settled.
func (d *Delivery) end(ctx context.Context, err error) error {
	switch {
	case err == nil:
		d.state = settled
	case errors.Is(err, transport.ErrLeaseLost):
		d.loseLease(ctx, err)
	default:
		return err
	}
	return nil
}

// loseLease records that the lease is lost. The loss is no failure, and nothing is left to settle.
// The loss is counted unless the failure of the message is counted.
func (d *Delivery) loseLease(ctx context.Context, err error) {
	if d.state = leaseLost; !d.FailureCounted {
		d.Failures.LeaseLost(d.FailureKey())
	}
	d.LogError(ctx, slog.LevelWarn, "the lease of a message was lost: the broker delivers it again", err)
}

// Lose ends an attempt whose lease was lost while the message was handled. A call of the driver's
// Retry reports the loss to a driver that counts deliveries. Release would not, because a message
// that was held for longer than its lease counts.
func (d *Delivery) Lose(ctx context.Context, cause error) {
	d.loseLease(ctx, cause)
	_ = d.Received.Retry(d.Context()) // fails, because the lease is lost
}

// IsLost reports whether the driver knows that the delivery is lost.
func (d *Delivery) IsLost() bool {
	detector, ok := d.Received.(transport.LossDetector)
	return ok && detector.Lost()
}

// Drop ends a held message whose delivery is lost. The failure of the message is counted already.
func (d *Delivery) Drop() {
	d.state = leaseLost
	_ = d.Received.Retry(d.Context()) // fails, and lets the driver forget the delivery
}

// LogError logs an error that concerns the message.
func (d *Delivery) LogError(
	ctx context.Context, level slog.Level, text string, err error, attrs ...slog.Attr,
) {
	attrs = append(attrs, slog.String("message", d.LogID()), slog.Any("error", err))
	d.Log.LogAttrs(ctx, level, text, attrs...) //nolint:sloglint // the texts are constants of the callers
}

// ForgetFailures ends the cycle of the message. Other messages may have an id that is made of the
// content: they have not crashed a process, although they were delivered before and have no failure
// here.
func (d *Delivery) ForgetFailures() {
	if transport.IsContentID(d.ID) {
		d.Failures.Clear(d.FailureKey())
		return
	}
	d.Failures.Forget(d.FailureKey())
}

// Timeout is the least time of a settling call.
const Timeout = 10 * time.Second

// Deadlines returns contexts that end after at least [Timeout] and less than twice that. Messages
// that settle at about the same time share one, because a timer for each would cost more than the
// rest of settling.
type Deadlines struct {
	Parent context.Context //nolint:containedctx // of the whole run, never cancelled before its end
	// Blocked reports whether the broker takes no messages at the moment: then no context ends.
	// Optional.
	Blocked func() bool

	mu      sync.Mutex      // guards the rest
	current context.Context //nolint:containedctx // the context that is returned
	cancel  context.CancelFunc
	renewed time.Time
}

func (d *Deadlines) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == nil || time.Since(d.renewed) > Timeout {
		if d.Blocked == nil {
			d.current, d.cancel = context.WithTimeout(d.Parent, 2*Timeout)
		} else {
			d.current, d.cancel = withExtension(d.Parent, 2*Timeout, d.Blocked)
		}
		d.renewed = time.Now()
	}
	return d.current
}

// Close ends the current context; nothing may be settling any more.
func (d *Deadlines) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
}

// extended is a context whose end is that of a deadline, also for contexts derived from it: Value
// does not show them done, whose error they would take.
type extended struct {
	context.Context                 //nolint:containedctx // it is one
	done            context.Context //nolint:containedctx // it ends as extended does
}

func (c extended) Done() <-chan struct{} { return c.done.Done() }

func (c extended) Err() error {
	if c.done.Err() == nil {
		return nil
	}
	return context.DeadlineExceeded
}

// withExtension returns a context whose deadline is extended while the broker is blocked, and by
// another span after that. Waiting for a blocked broker is no failure of the message that is
// settled.
func withExtension(
	parent context.Context, span time.Duration, blocked func() bool,
) (context.Context, func()) {
	done, end := context.WithCancel(parent)
	var arm func(wasBlocked bool)
	arm = func(wasBlocked bool) {
		time.AfterFunc(span, func() {
			switch isBlocked := blocked(); {
			case done.Err() != nil:
			case isBlocked || wasBlocked:
				arm(isBlocked)
			default:
				end()
			}
		})
	}
	arm(false)
	return extended{parent, done}, end
}

// Facts returns the message and everything about its failure that is known without counting.
func (d *Delivery) Facts(err error) recoverability.Failure {
	now := time.Now()
	m, attempt := SharedCopy(d.Original), d.Received.Attempt()
	return recoverability.Failure{
		Err: err, MessageID: d.ID, Type: FirstType(m.Headers), Queue: d.Queue,
		Headers: m.Headers, Body: m.Body, Native: m.Native,
		Attempt: attempt.N, AttemptExact: attempt.Exact, Immediate: attempt.N + fault.UsedRetries(m.Headers),
		Delayed:      fault.DelayedRetries(m.Headers),
		Inline:       d.Inline,
		FirstFailure: fault.FirstFailure(m.Headers, now), Now: now,
		Instance: d.Instance, History: fault.ParseHistory(m.Headers.Get(header.HoldfastHistory)),
		Config: *d.Config,
	}
}

// SharedCopy returns a copy of a message for the user's code, which may change it. Copies to the
// error queue, to the audit queue and for later are made of the original. The headers are copied on
// write.
func SharedCopy(m *transport.Message) *transport.Message {
	c := *m
	c.Headers, c.Body, c.Native = m.Headers.CopyOnWrite(), slices.Clone(m.Body), maps.Clone(m.Native)
	return &c
}

// numberedID begins the id of a message that has only the broker's number. Copies keep the id. The
// broker may give another message the same number when its database is restored, or when the queue
// is created anew.
const numberedID = "native:"

// IsNamed reports whether the sender of the message has chosen the id, so that no two messages
// share the id.
func IsNamed(id string) bool {
	return id != "" && !strings.HasPrefix(id, numberedID) && !transport.IsContentID(id)
}

// OriginalOf returns a received message as the sender made the message, and its id. A packed
// message is unpacked, whoever has returned it.
func OriginalOf(received *transport.Message) (m *transport.Message, id string) {
	m = received
	if _, packed := m.Headers.Lookup(header.HoldfastReceived); packed {
		m = copies.Unpacked(m)
	}
	if _, returned := m.Headers.Lookup(header.RetryUniqueID); returned {
		own := *m
		own.Headers, m = fault.ReturnedHeaders(m.Headers), &own
	}
	if id = cmp.Or(m.ID, m.Headers.Get(header.MessageID)); id == "" && m.NativeID != "" {
		id = numberedID + m.NativeID // of another producer
	}
	return m, id
}

// MaxLogged bounds a text of a message in a line of the log, in bytes. The sender of a message
// chooses the id and the type.
const MaxLogged = 512

// Message is a received message as its sender made the message.
type Message struct {
	Queue string // that the sender or the endpoint has sent the message to
	ID    string // perhaps only the broker's number
	// Original is the message as received, without the headers of the quarantine. The message that
	// Original points to never changes.
	Original *transport.Message
}

// LogID returns the id of the message for the log.
func (m *Message) LogID() string { return errtree.Cut(m.ID, MaxLogged) }

// FailureKey returns the key of the message in the memory of failures.
func (m *Message) FailureKey() failurelog.Key { return failurelog.KeyOf(m.Queue, m.ID) }

// CopyTo returns an operation that sends the message, as it was received, to a queue. The copy
// keeps the broker's id, so that a driver can distinguish copies of different deliveries, and the
// broker's properties, so that a driver can send them again.
func (m *Message) CopyTo(queue string, headers header.Map, after time.Duration) transport.Operation {
	headers.SetDefault(header.MessageID, m.ID)
	return transport.Operation{
		Message: &transport.Message{
			ID: m.ID, NativeID: m.Original.NativeID, Native: m.Original.Native,
			Headers: headers, Body: m.Original.Body,
		},
		Queue: queue, After: after,
	}
}

// FirstType returns the first type that the headers of a message name; "" for none.
func FirstType(h header.Map) string {
	for name := range header.TypeNames(h.Get(header.EnclosedMessageTypes)) {
		return name
	}
	return ""
}
