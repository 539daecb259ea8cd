// Package recovery decides what happens to a message that failed, and carries the decision out.
package recovery

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/held"
	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Shared has the parts that the recoveries of an endpoint share. Its fields are set before the
// first recovery.
type Shared struct {
	Host     fault.Host
	Names    *names.Queues
	Notifier *notify.Notifier
	Calls    *overdue.Watch
	Limits   transport.Limits
	Stopping <-chan struct{} // closed when the endpoint stops
	Room     held.Room       // of messages that wait for their error queue
	Exits    held.Exits      // of these

	// Stage runs stage Recover, which ends with [Recovery.AtEndOfStage].
	Stage pipeline.Func[*pipeline.Recover]
	// OnFinalFailure is called before a message is given up; nil for no function.
	OnFinalFailure func(context.Context, pipeline.Sender, recoverability.Failure) error
	// Commit commits what stage Recover wrote and sent in the outbox; nil without an outbox.
	Commit func(
		ctx context.Context, u *work.Unit, tx transport.Tx, ops, own []transport.Operation,
	) error
	// StoresOthers reports whether the database stores the rows of other messages.
	StoresOthers func(context.Context) bool
	// ReceivesFrom reports whether the endpoint receives from a queue.
	ReceivesFrom func(queue string) bool
	// Accepting returns the queue of the driver for waiting messages; "" without such a queue.
	Accepting func() string

	pauses pauses
	stuck  atomic.Int64 // messages that are not requeued yet
}

// Attempt is an attempt at a message that failed.
type Attempt interface {
	// Origin returns the place of an error that has no stack.
	Origin() fault.Frame
	// NewSession returns a session of stage Recover, and its unit.
	NewSession() (pipeline.Sender, *work.Unit)
	// Recovering returns the value of stage Receive for stage Recover, with a session.
	Recovering(s pipeline.Sender) pipeline.Receive
}

// Stuck returns the number of messages that could be neither settled nor moved and are not requeued
// yet.
func (s *Shared) Stuck() int64 { return s.stuck.Load() }

// StuckPause returns the pause after a message that is stuck.
func (s *Shared) StuckPause() time.Duration { return s.pauses.next() }

// sleep pauses for d, or until the endpoint stops or ctx ends.
func (s *Shared) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.Stopping:
	case <-ctx.Done():
	}
}

// pauses is a back-off that all stuck messages share.
type pauses struct {
	mu      sync.Mutex // guards the rest
	backoff backoff.Backoff
	last    time.Time
}

const maxHold = 30 * time.Second

// next returns the pause for another message. It starts again at a second when there was none for a
// while.
func (p *pauses) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.last) > 2*maxHold {
		p.backoff = backoff.Backoff{Min: time.Second, Max: maxHold}
	}
	p.last = now
	return p.backoff.Next()
}

// The names of the functions of the program that a recovery calls: see
// [overdue.Call.EnterFunction].
var (
	nameRecover      = "a behavior of stage Recover"
	namePolicy       = "Recoverability.Policy, or a matcher"
	nameFaultHeaders = "Recoverability.FaultHeaders"
	nameFinalFailure = "Config.OnFinalFailure"
)

// Failed is a message that failed. Its exported fields are set before the first call. A Failed is
// not safe for concurrent use.
type Failed struct {
	*Shared
	*settle.Delivery
	notify.Reporter

	Audit     *audit.Message
	Exclusive *quarantine.Message // nil outside quarantine
	MayWait   bool                // for the error queue, without a slot

	attempt   Attempt
	at        fault.Frame                   // where the attempt failed
	session   pipeline.Sender               // of stage Recover
	unit      *work.Unit                    // of the session
	fallbacks []recoverability.Notification // to be reported when the message is settled
	logged    recoverability.Action         // announced in the log last
	finalised bool                          // Config.OnFinalFailure has been called
}

// Stuck is the result of a recovery whose message could be neither settled nor moved. The message
// was reported, and is requeued after a pause.
type Stuck struct{ pause time.Duration }

func (Stuck) isResult() {}

// begin returns the value of stage Recover after an attempt. The value has a session and headers of
// its own: a goroutine that outlives a handler may still use the attempt's, and must not send as
// part of the recovery.
func (r *Failed) begin(a Attempt, f recoverability.Failure) *pipeline.Recover {
	r.FailureCounted = true
	r.attempt, r.at = a, a.Origin()
	r.newSession()
	receive := a.Recovering(r.session)
	return &pipeline.Recover{Receive: &receive, Failure: f}
}

// newSession sets a new session of stage Recover.
func (r *Failed) newSession() { r.session, r.unit = r.attempt.NewSession() }

// call calls f, a function of the program: see [overdue.Watch.Apart].
func (r *Failed) call(call *overdue.Call, name *string, f func() error) error {
	call.Slot = r.Slot
	return r.Calls.Apart(call, name, r.Queue, r.ID, f)
}

// onFinalFailure calls the user's function, once. If the function fails, its operations are
// left out. An error is returned if the function may have written in the transaction, because
// writes cannot be undone in part.
func (r *Failed) onFinalFailure(ctx context.Context, failure recoverability.Failure) error {
	if r.OnFinalFailure == nil || r.finalised {
		return nil
	}
	r.finalised = true
	before, err := r.unit.Begin(ctx, work.AllHandlers)
	if err != nil {
		return err
	}
	err = r.call(new(overdue.Call), &nameFinalFailure, func() error {
		return r.OnFinalFailure(ctx, r.session, failure)
	})
	if err == nil {
		return nil
	}
	r.LogError(ctx, slog.LevelError,
		"Config.OnFinalFailure failed: its messages and writes are discarded", err)
	if _, tx := r.unit.End(); tx != nil { // no goroutine of the function sends any more
		return &copies.ProgramError{Mark: errtree.Mark{Err: err}}
	}
	r.unit.Drop(before)
	return nil
}

// Keep reports a message that can be neither settled nor moved, for instance because the error
// queue is missing. The caller requeues the message.
func (r *Failed) Keep(ctx context.Context, err error) Stuck {
	r.reportKept(ctx, err)
	switch {
	case r.CompletedFirst():
		r.LogError(ctx, slog.LevelError,
			"a failed message is lost: it was completed first, and the error queue refused it",
			err)
		return Stuck{}
	case r.Exclusive != nil:
		r.LogError(ctx, slog.LevelError,
			"a failed message could not be settled: it leaves quarantine unless it is parked",
			err, slog.Bool("parked", r.Exclusive.Parked))
		return Stuck{}
	}
	pause := r.StuckPause()
	r.LogError(ctx, slog.LevelError, "a failed message could not be settled: it is requeued",
		err, slog.Duration("after", pause))
	return Stuck{pause}
}

// reportKept notifies of a message that can be neither settled nor moved.
func (r *Failed) reportKept(ctx context.Context, err error) {
	attempt := r.Received.Attempt()
	f := recoverability.Failure{
		Err:       fmt.Errorf("message %q from %q could not be settled: %w", r.LogID(), r.Queue, err),
		MessageID: r.ID, Type: settle.FirstType(r.Original.Headers), Queue: r.Queue,
		Attempt: attempt.N, AttemptExact: attempt.Exact, Now: time.Now(),
	}
	r.Report(r.Notifier.Next(r.FailureKey()), func() {
		r.Notifier.Critical(ctx, f)
		if !r.CompletedFirst() {
			r.Notifier.Notify(ctx, recoverability.Notification{
				Kind: recoverability.FallbackTaken, Failure: &f, Fallback: recoverability.FallbackHeld,
			})
		}
	})
}

// Requeue returns a stuck message to the queue of the message, after the pause: so no loop spins.
func (r *Failed) Requeue(ctx context.Context, s Stuck) {
	switch {
	case r.CompletedFirst():
		r.Lost()
	case r.Exclusive != nil:
		r.Exclusive.ReturnToOrigin(ctx)
	default:
		r.stuck.Add(1)
		r.sleep(ctx, s.pause)
		r.stuck.Add(-1)
		r.Retry(ctx)
	}
}

// failure counts the failure, and returns the facts by which the policy decides.
func (r *Failed) failure(err error) recoverability.Failure {
	f := r.Facts(err)
	known, _ := r.Failures.Known(r.FailureKey())
	if r.Inline == 0 { // a delivery counts once
		first := r.Exclusive == nil && f.AttemptExact && f.Attempt == 1
		known = r.Failures.Count(r.FailureKey(), f.Now, first)
	}
	if known.Since.Before(f.FirstFailure) { // in the first cycle only this process knows
		f.FirstFailure = known.Since
	}
	f.Handled, f.Lost, f.History = known.Failed, known.Lost, append(f.History, known.Past...)
	switch {
	case r.Exclusive != nil:
		f.Quarantined = r.Exclusive.Before
		// The failures before quarantine count: there the message is not retried at once.
		f.Immediate = max(f.Quarantined-1+f.Attempt, f.Config.Immediate+1, f.Config.Quarantine.After)
	case !f.AttemptExact:
		f.Immediate = known.Failed + fault.UsedRetries(r.Original.Headers)
	}
	return f
}

// decide asks the policy. If the policy panics or decides nothing, the message moves to the error
// queue.
func (r *Failed) decide(
	ctx context.Context, f recoverability.Failure,
) (action recoverability.Action) {
	r.findPolicy(ctx, f)
	policy := r.Config.Policy
	if policy == nil {
		policy = recoverability.Failure.Decide
	}
	err := r.call(new(overdue.Call), &namePolicy, func() error {
		action = policy(f)
		return nil
	})
	if err != nil {
		r.LogError(ctx, slog.LevelError,
			"the recoverability policy failed: moving the message to the error queue", err)
		r.tookFallback(recoverability.FallbackError, nil)
	}
	if action == nil {
		return r.toErrorQueue()
	}
	return action
}

// faultHeaders returns the headers that a move to the error queue adds, changed by the user's
// function, which may panic.
func (r *Failed) faultHeaders(ctx context.Context, f recoverability.Failure) header.Map {
	h := fault.Headers(f, r.Host, r.at)
	h.Set(header.FailedQ, r.Names.Address(f.Queue)) // other programs return the message to that queue
	if errtree.Find[*transport.DeadLetteredError](f.Err) != nil {
		h = fault.DeadLetterHeaders(r.Original.Headers, h)
	}
	change := r.Config.FaultHeaders
	if change == nil {
		return h
	}
	changed := h.Clone()
	err := r.call(new(overdue.Call), &nameFaultHeaders, func() error {
		change(&changed, f)
		return nil
	})
	if err != nil {
		r.LogError(ctx, slog.LevelError,
			"Recoverability.FaultHeaders failed: the headers are not changed", err)
		return h
	}
	return changed
}

// findPolicy logs that the endpoint does not have the policy that the message names. Then the
// message is retried by the rules of its type.
func (r *Failed) findPolicy(ctx context.Context, f recoverability.Failure) {
	name := cmp.Or(f.Headers.Get(header.HoldfastPolicy), f.Headers.Get(header.HoldfastRetryPolicy))
	if name == "" {
		return
	}
	if _, ok := f.Config.NamedPolicy(name); ok {
		return
	}
	r.Log.WarnContext(ctx,
		"a message names a retry policy that the endpoint does not have: its type's retries count; "+
			"add the policy to Recoverability.Policies", slog.String("message", r.LogID()),
		slog.String("policy", errtree.Cut(name, settle.MaxLogged)))
}

// possible returns the action, or a move to the error queue if the action cannot be carried out.
func (r *Failed) possible(ctx context.Context, action recoverability.Action) recoverability.Action {
	if action == (recoverability.MoveToError{}) {
		return r.toErrorQueue()
	}
	switch a := action.(type) {
	case recoverability.Delay:
		action = recoverability.Delay{For: max(0, a.For)}
	case recoverability.RetryInline:
		action = recoverability.RetryInline{For: max(0, a.For)}
	case recoverability.MoveToError:
		action = recoverability.MoveToError{Queue: r.Names.Of(a.Queue)}
	case recoverability.Retry, recoverability.DeadLetter, recoverability.Discard:
	}
	why := r.impossible(action)
	if why == "" {
		return action
	}
	r.Log.WarnContext(ctx, "an action cannot be carried out: moving the message to the error queue",
		slog.String("message", r.LogID()), slog.Any("action", action), slog.String("reason", why))
	r.tookFallback(recoverability.FallbackError, action)
	return r.toErrorQueue()
}

// toErrorQueue returns the action for a message without another possible action.
func (r *Failed) toErrorQueue() recoverability.Action {
	return recoverability.MoveToError{Queue: r.Config.ErrorQueue}
}

// impossible returns why the transport, the transaction mode or the quarantine does not allow the
// action; "" if they do.
func (r *Failed) impossible(action recoverability.Action) string {
	noRetries := r.Exclusive.Forbids(action)
	if noRetries == "" && r.CompletedFirst() {
		noRetries = "transaction mode None has no retries"
	}
	switch a := action.(type) {
	case recoverability.Retry:
		return noRetries
	case recoverability.RetryInline:
		if until := r.HoldUntil; noRetries == "" && !until.IsZero() && time.Now().Add(a.For).After(until) {
			return "the broker would deliver the message again before the inline retry: use resilience.Deferred for its type"
		}
		return noRetries
	case recoverability.Delay:
		switch most := r.Limits.MaxDelay; {
		case noRetries != "":
			return noRetries
		case most == 0:
			return "the transport offers no delays"
		case a.For > most:
			return fmt.Sprintf("the delay is over the transport's %v", most)
		}
	case recoverability.MoveToError:
		if a.Queue == r.Queue || r.ReceivesFrom(a.Queue) {
			return "the endpoint receives from that queue, and would receive the message again at once"
		}
	case recoverability.DeadLetter:
		if _, ok := r.Received.(transport.DeadLetterer); !ok || r.CompletedFirst() {
			return "the transport has no dead-letter queue"
		}
	case recoverability.Discard:
	default:
		return fmt.Sprintf("%T is no action", action)
	}
	return ""
}

// logAction logs the action with the texts that operators of NServiceBus know. The line comes
// before the action, so that the lines of the next attempt follow. If the action fails, another line
// follows.
func (r *Failed) logAction(ctx context.Context, action recoverability.Action, f recoverability.Failure) {
	if action == r.logged {
		return
	}
	r.logged = action
	level, logger, text, reason := slog.LevelInfo, "", "", ""
	switch a := action.(type) {
	case recoverability.Retry:
		logger = "ImmediateRetry"
		text = fmt.Sprintf("Immediate Retry is going to retry message '%s' because of an exception:", r.LogID())
	case recoverability.RetryInline:
		logger = "InlineRetry"
		text = fmt.Sprintf("Inline Retry is going to retry message '%s' after a delay of %s because of an exception:",
			r.LogID(), header.FormatDuration(a.For))
	case recoverability.Delay:
		level, logger = slog.LevelWarn, "DelayedRetry"
		text = fmt.Sprintf("Delayed Retry will reschedule message '%s' after a delay of %s because of an exception:",
			r.LogID(), header.FormatDuration(a.For))
	case recoverability.MoveToError:
		level, logger = slog.LevelError, "MoveToError"
		text = fmt.Sprintf("Moving message '%s' to the error queue '%s' because processing failed due to an exception:", r.LogID(), a.Queue)
	case recoverability.DeadLetter:
		level, logger, reason = slog.LevelError, "DeadLetter", a.Reason
		text = fmt.Sprintf("Moving message '%s' to the broker's dead-letter queue because processing failed due to an exception:", r.LogID())
	case recoverability.Discard:
		logger, reason = "Discard", a.Reason
		text = fmt.Sprintf("Discarding message '%s' because of an exception:", r.LogID())
	}
	if !r.Log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("logger", logger), slog.String("type", errtree.Cut(f.Type, settle.MaxLogged)),
		slog.Int("attempt", f.Attempt), slog.Int("delayed", f.Delayed), slog.Any("error", f.Err),
	}
	if policy := f.Resilience().Policy.Name; policy != "" {
		attrs = append(attrs, slog.String("policy", policy), slog.Int("inline", f.Inline))
	}
	if reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	//nolint:sloglint // operators search for these texts, which have the id in them
	r.Log.LogAttrs(ctx, level, text, attrs...)
}

// tookFallback records a fallback, to be reported once the message is settled.
func (r *Failed) tookFallback(f recoverability.Fallback, instead recoverability.Action) {
	r.fallbacks = append(r.fallbacks, recoverability.Notification{
		Kind: recoverability.FallbackTaken, Fallback: f, Action: instead,
	})
}

// carriedOut forgets the failures of a message whose action ends the cycle. It returns a function
// that reports the action.
func (r *Failed) carriedOut(ctx context.Context, rec *pipeline.Recover) (report func()) {
	if again := sameCycle(rec.Action); r.Exclusive != nil || !again && !r.LostLease() {
		r.ForgetFailures()
	}
	if r.LostLease() {
		return func() {}
	}
	done, failure := rec.Action, rec.Failure
	return func() { r.notifyAction(ctx, done, failure) }
}

// sameCycle reports whether the failures of the message count for its next attempt too.
func sameCycle(action recoverability.Action) bool {
	_, immediate := action.(recoverability.Retry)
	_, inline := action.(recoverability.RetryInline)
	return immediate || inline
}

// notifyAction reports an action that was carried out, and the fallbacks before the action.
func (r *Failed) notifyAction(ctx context.Context, action recoverability.Action, f recoverability.Failure) {
	for _, n := range r.fallbacks {
		n.Failure = &f
		r.Notifier.Notify(ctx, n)
	}
	n := recoverability.Notification{Failure: &f, Action: action}
	switch a := action.(type) {
	case recoverability.Retry:
		n.Kind, n.Retry = recoverability.ImmediateRetry, f.Immediate
	case recoverability.RetryInline:
		n.Kind, n.Retry = recoverability.InlineRetry, f.Inline+1
	case recoverability.Delay:
		n.Kind, n.Retry, n.To = recoverability.DelayedRetry, f.Delayed+1, r.Queue
	case recoverability.MoveToError:
		n.Kind, n.To = recoverability.MovedToError, a.Queue
	case recoverability.DeadLetter:
		n.Kind = recoverability.DeadLettered
	case recoverability.Discard:
		n.Kind = recoverability.Discarded
	}
	r.Notifier.Notify(ctx, n)
}
