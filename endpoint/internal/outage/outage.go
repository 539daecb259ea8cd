// Package outage distinguishes an outage of the database of the outbox or inbox from the failure of
// a message, and asks the database until the outage is over. The messages wait in package process.
package outage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/transport"
)

// MaxPause is the longest pause before the database is asked again.
const MaxPause = 30 * time.Second

const (
	minPause   = time.Second      // the shortest pause
	answerTime = 10 * time.Second // for one answer of the database
)

// Questions are the questions to the database of an endpoint.
type Questions struct {
	// Probe asks whether the database answers.
	Probe func(ctx context.Context) error
	// Stores asks whether the database commits the rows of the outbox and inbox: a standby and a
	// full disk answer, and do not commit.
	Stores func(ctx context.Context) error
	// StoresRecords asks for all rights to the records of handlers.
	StoresRecords func(ctx context.Context) error
}

// Database is the database of the outbox or inbox. While the database cannot be reached or does not
// write, no message is attempted, and no retry is used up. A Database is safe for concurrent use.
// The nil Database is for an endpoint without an outbox and an inbox: no failure is an outage.
type Database struct {
	Questions

	// Committed is set after each commit, and cleared when an outage begins.
	Committed atomic.Bool

	of  string
	log *slog.Logger

	life    context.Context //nolint:containedctx // of the probes
	end     context.CancelFunc
	probing sync.WaitGroup

	mu    sync.Mutex    // guards the rest
	over  chan struct{} // closed when the database answers again; nil while the database answers
	since time.Time
	err   error
	pause backoff.Backoff
}

// New returns the database of an outbox or of an inbox, as of says. Close ends its probes.
func New(ctx context.Context, of string, q Questions, log *slog.Logger) *Database {
	o := &Database{Questions: q, of: of, log: log, pause: backoff.Backoff{Min: minPause, Max: MaxPause}}
	o.life, o.end = context.WithCancel(context.WithoutCancel(ctx))
	return o
}

// Close ends the probes.
func (o *Database) Close() {
	if o != nil {
		o.end()
		o.probing.Wait()
	}
}

// Began records that the database did not answer, and returns a channel that is closed when the
// database answers. The pause before the first probe grows while outages follow each other without
// a commit between them.
func (o *Database) Began(ctx context.Context, err error) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over == nil {
		if o.Committed.Swap(false) {
			o.pause.Reset()
		}
		o.over, o.since, o.err = make(chan struct{}), time.Now(), err
		o.log.WarnContext(ctx, "the outbox or the inbox cannot be used: messages wait without using up a retry until its database answers",
			slog.Any("error", err))
		o.probing.Go(o.watch)
	}
	return o.over
}

// watch probes until the database answers.
func (o *Database) watch() {
	for o.pauseBefore() == nil {
		err := answer(o.life, o.askAll)
		if away(err) || errors.Is(err, transport.ErrNoQueue) || errors.Is(err, transport.ErrDenied) {
			continue
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.log.InfoContext(o.life, "the database of the outbox and the inbox answers: messages are attempted again",
			slog.Duration("after", time.Since(o.since)))
		close(o.over)
		o.over = nil
		return
	}
}

func (o *Database) pauseBefore() error {
	o.mu.Lock()
	d := o.pause.Next()
	o.mu.Unlock()
	return backoff.Sleep(o.life, d)
}

// askAll returns nil if the database can be used.
func (o *Database) askAll(ctx context.Context) error {
	for _, ask := range []func(context.Context) error{o.Probe, o.Stores, o.StoresRecords} {
		if err := ask(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Status is the state of the database. Err is nil while the database can be used.
type Status struct {
	Of    string    // "outbox" or "inbox"
	Since time.Time // when the outage began
	Err   error
}

// Status returns the state of the database.
func (o *Database) Status() (s Status) {
	if o == nil {
		return s
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.Of = o.of; o.over != nil {
		s.Since, s.Err = o.since, o.err
	}
	return s
}

// away reports whether err means that the database did nothing, and may later.
func away(err error) bool {
	return errors.Is(err, transport.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// mayBeOutage reports whether err may be an error of an outage.
func mayBeOutage(err error) bool { return away(err) || errors.Is(err, transport.ErrDenied) }

// FailsAlone reports whether an attempt has failed as in an outage, and the database stores other
// rows nevertheless. The commit has failed because of a deferred trigger, of a handler that has made
// the transaction read-only or has changed the role, or after a long time. Or a statement about
// records has failed because of an earlier handler or of a time limit. The attempt is repeated, and
// then a failure of the message: the message would otherwise wait without end. repeatable: the
// attempt with the unit u may succeed when repeated.
func (o *Database) FailsAlone(
	ctx context.Context, d *settle.Delivery, u *work.Unit, err error, repeatable bool,
) bool {
	if !o.concerns(ctx, d) || d.BusyQueue() != "" {
		return false
	}
	if failed, ok := errors.AsType[*work.CommitError](u.Failure()); ok && mayBeOutage(failed) {
		return o.storesOthers(ctx, u.Begun(), failed, unlikeOutage)
	}
	failed := errtree.Find[*stateful.StoreError](err)
	if failed == nil || repeatable || !mayBeOutage(failed) ||
		!o.storesOthers(ctx, u.Begun(), failed, unlikeOutage) {
		return false
	}
	u.Rollback(ctx) // the question takes a connection for handlers
	return answer(ctx, o.StoresRecords) == nil
}

// BreaksAlone reports whether the database stores other rows, after the transaction of u was lost at
// each attempt of the delivery. A server that restarts refuses the first connections: the failure is
// an outage.
func (o *Database) BreaksAlone(
	ctx context.Context, d *settle.Delivery, u *work.Unit, err error,
) bool {
	return o.concerns(ctx, d) && o.storesOthers(ctx, u.Begun(), err, unlikeOutage)
}

// concerns reports whether the failure of an attempt may be an outage that the message can wait for.
func (o *Database) concerns(ctx context.Context, d *settle.Delivery) bool {
	return o != nil && !d.Over() && !d.CompletedFirst() && ctx.Err() == nil
}

// IsImpeded reports whether an attempt with the transaction tx has failed because of a full disk or
// the like, and the database stores other rows nevertheless.
func (o *Database) IsImpeded(ctx context.Context, tx transport.Tx, down error) bool {
	return o.storesOthers(ctx, tx, down, likeOutage)
}

// StoresOthers reports whether the database stores another row now.
func (o *Database) StoresOthers(ctx context.Context) bool {
	return o != nil && o.storesOthers(ctx, nil, nil, unlikeOutage)
}

// sign is the answer of a [transport.OutageDetector] about an error.
type sign int8

const (
	unlikeOutage sign = iota // also without a detector
	likeOutage               // such as a full disk, which may have room for a small row
)

// storesOthers reports whether the database stores another row now, although an attempt with the
// transaction tx has failed with an error of a sign. tx may be nil.
func (o *Database) storesOthers(
	ctx context.Context, tx transport.Tx, failed error, of sign,
) bool {
	if o.Status().Err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	found := unlikeOutage
	if d, ok := tx.(transport.OutageDetector); ok && d.Outage(ctx, failed) {
		found = likeOutage
	}
	return found == of && o.Stores(ctx) == nil
}

// Down returns why the database cannot be used, if the attempt at a message ended with failure
// because of the database; nil otherwise. A statement of a handler in the transaction tx may have
// found out first, perhaps during the commit.
func (o *Database) Down(
	ctx context.Context, d *settle.Delivery, u *work.Unit, tx transport.Tx, failure error,
) error {
	if o == nil || d.CompletedFirst() {
		return nil
	}
	err := u.Failure()
	if _, expired := errors.AsType[*work.ExpiredError](err); expired {
		err = answer(ctx, o.Probe)
	}
	if err = o.unusable(ctx, d.TxElsewhere, err); err != nil {
		return err
	}
	if err := recordsDown(failure); err != nil {
		return err
	}
	if tx == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if d, ok := tx.(transport.OutageDetector); ok && d.Outage(ctx, failure) {
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, failure)
	}
	if err := o.Probe(ctx); away(err) {
		return err
	}
	return nil
}

// answer asks the database for a limited time.
func answer(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return ask(ctx)
}

// unusable returns err with advice, if err means that the tables of the outbox and inbox cannot be
// used; nil otherwise. apart: the outbox is in another database than the messages. Otherwise the
// error of a destination of a handler's messages is no outage.
func (o *Database) unusable(ctx context.Context, apart bool, err error) error {
	_, refused := errors.AsType[*transport.DispatchError](err)
	switch {
	case away(err):
		return err
	case errors.Is(err, transport.ErrNoQueue) && (apart || !refused):
		return fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
	// The error of a transaction does not say whether the inbox or a destination was refused.
	case errors.Is(err, transport.ErrDenied) &&
		(apart || !refused || errors.Is(answer(ctx, o.Stores), transport.ErrDenied)):
		return work.WithAdvice(err)
	}
	return nil
}

// recordsDown returns why the records of the handlers cannot be used, if failure says so; nil
// otherwise.
func recordsDown(failure error) error {
	failed := errtree.Find[*stateful.StoreError](failure)
	switch {
	case failed == nil:
	case away(failed):
		return failed
	case errors.Is(failed, transport.ErrNoQueue):
		return fmt.Errorf("the table of records: %w: create it with Config.Install or Endpoint.Install", failed)
	case errors.Is(failed, transport.ErrDenied):
		return fmt.Errorf("%w: grant SELECT, INSERT, UPDATE and DELETE on the table of records", failed)
	}
	return nil
}

// BlameMessage returns the failure of a message that the database would not store, while the
// database stores other messages.
func BlameMessage(err error) error {
	if errors.Is(err, transport.ErrDenied) {
		return fmt.Errorf("the database stores other messages, and not this one: the handler has left its transaction with another role "+
			"(SET ROLE, SET SESSION AUTHORIZATION), which lacks a right of the endpoint's: end it with RESET ROLE: %w", err)
	}
	return fmt.Errorf("the database stores other messages, and not this one: %w", err)
}

// BlameConnection returns the failure of a message whose handler breaks its connection to the
// database at each attempt.
func BlameConnection(err error) error { return &brokenError{errtree.Mark{Err: err}} }

type brokenError struct{ errtree.Mark }

func (e *brokenError) Error() string {
	return "the handler's connection to the database breaks at each attempt, and others do not: " + e.Mark.Error()
}

// FaultClass makes the class of the failure "connection".
func (e *brokenError) FaultClass() string { return "connection" }

// maxImpeded is the time after which a message fails, if each attempt finds a full disk, while the
// database stores other messages.
const maxImpeded = 10 * time.Minute

// Impediment is the time in which the attempts at one delivery find a full disk, and the database
// stores other messages: the disk of one tablespace is full, or a query of the handler fills the
// disk by itself. The message waits, and no other message waits.
type Impediment struct {
	since time.Time // zero before the first such attempt
	pause backoff.Backoff
}

// Next returns the pause before the next attempt at the message of d, after an attempt that failed
// with err. If the message has waited for long, Next returns the failure of the message.
func (p *Impediment) Next(
	ctx context.Context, d *settle.Delivery, err error,
) (pause time.Duration, failure error) {
	if p.since.IsZero() {
		p.since, p.pause = time.Now(), backoff.Backoff{Min: minPause, Max: MaxPause}
		d.Log.WarnContext(ctx, "a message finds that the database is full, and the database stores "+
			"others: the message waits without using up a retry", slog.String("message", d.LogID()),
			slog.Duration("at_most", maxImpeded), slog.Any("error", err))
	} else if time.Since(p.since) >= maxImpeded {
		return 0, &impededError{errtree.Mark{Err: err}}
	}
	return p.pause.Next(), nil
}

// impededError is the failure of a message that was impeded for long.
type impededError struct{ errtree.Mark }

func (e *impededError) Error() string {
	return fmt.Sprintf("the database stores other messages, and not this one for %v: %v", maxImpeded,
		e.Mark.Error())
}
