package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// outageMin and outageMax bound the pause before the database of the outbox is tried again.
	outageMin = time.Second
	outageMax = 30 * time.Second
	// outageProbe bounds one such try.
	outageProbe = 10 * time.Second
)

// outage is the time in which the database of the outbox or inbox cannot be reached or does not
// write. No message is attempted meanwhile, and none uses up a retry.
type outage struct {
	what  string // "outbox", or "inbox" where there is no outbox
	probe func(ctx context.Context) error
	log   *slog.Logger

	life    context.Context //nolint:containedctx // of the probes
	end     context.CancelFunc
	probing sync.WaitGroup

	mu      sync.Mutex    // guards the rest
	over    chan struct{} // closed when the database answers again; nil while it does
	since   time.Time
	err     error
	pause   backoff.Backoff
	written bool // since the last outage
}

func (l *live) newOutage(ctx context.Context) *outage {
	o := &outage{what: "outbox", log: l.e.cfg.Logger, probe: l.usable, pause: backoff.Backoff{Min: outageMin, Max: outageMax}}
	if l.outbox == nil {
		o.what = "inbox"
	}
	o.life, o.end = context.WithCancel(context.WithoutCancel(ctx))
	return o
}

// began records that the database did not answer, and returns a channel that is closed when it
// does. The pause before the first probe grows where outages follow each other without a commit
// between them.
func (o *outage) began(ctx context.Context, err error) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over == nil {
		if o.written {
			o.pause.Reset()
		}
		o.over, o.since, o.err, o.written = make(chan struct{}), time.Now(), err, false
		o.log.WarnContext(ctx, "the outbox or the inbox cannot be used: messages wait without using up a retry until its database answers",
			slog.Any("error", err))
		o.probing.Go(o.watch)
	}
	return o.over
}

// committed records that the database has written.
func (o *outage) committed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written = true
}

// watch probes until the database answers.
func (o *outage) watch() {
	for o.pauseBefore() == nil {
		ctx, cancel := context.WithTimeout(o.life, outageProbe)
		err := o.probe(ctx)
		cancel()
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

func (o *outage) pauseBefore() error {
	o.mu.Lock()
	d := o.pause.Next()
	o.mu.Unlock()
	return backoff.Sleep(o.life, d)
}

// failing returns the beginning and the error of an outage; nil where there is none.
func (o *outage) failing() (time.Time, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over == nil {
		return time.Time{}, nil
	}
	return o.since, o.err
}

func (o *outage) close() {
	if o != nil {
		o.end()
		o.probing.Wait()
	}
}

// away reports whether err means that the database did nothing, and may later.
func away(err error) bool {
	return errors.Is(err, transport.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// failsAlone reports whether the attempt has failed as in an outage, and the database stores other
// things nevertheless: the commit has failed because of a deferred trigger, of a handler that has
// made its transaction read-only or has changed its role, or after a long time, or a statement
// about records has failed because of an earlier handler or of a time limit. Such an attempt is
// repeated, and then a failure of the message: it would otherwise wait without end.
func (a *attempt) failsAlone(ctx context.Context, err error, repeatable bool) bool {
	if a.live.outage == nil || a.Over() || a.CompletedFirst() || a.BusyQueue() != "" || ctx.Err() != nil {
		return false
	}
	if failed, ok := errors.AsType[*work.CommitError](a.session.unit.Failure()); ok && mayBeOutage(failed) {
		return a.storesOthers(ctx, failed)
	}
	failed := errtree.Find[*stateful.StoreError](err)
	if failed == nil || repeatable || !mayBeOutage(failed) || !a.storesOthers(ctx, failed) {
		return false
	}
	a.session.unit.Rollback(ctx) // the question takes a connection of those for handlers
	ctx, cancel := context.WithTimeout(ctx, outageProbe)
	defer cancel()
	return a.live.storesRecords(ctx) == nil
}

// mayBeOutage reports whether an outage of the database has such an error too.
func mayBeOutage(err error) bool { return away(err) || errors.Is(err, transport.ErrDenied) }

// storesOthers reports whether the database of the outbox and inbox stores something after failed.
func (a *attempt) storesOthers(ctx context.Context, failed error) bool {
	if _, known := a.live.outage.failing(); known != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, outageProbe)
	defer cancel()
	_, tx := a.session.unit.End()
	if d, ok := tx.(transport.OutageDetector); ok && d.Outage(ctx, failed) {
		return false // a full disk may have room for a small row
	}
	return a.live.stores(ctx) == nil
}

// loneError is the failure of a message that the database would not store, while it stores other
// messages.
func loneError(err error) error {
	if errors.Is(err, transport.ErrDenied) {
		return fmt.Errorf("the database stores other messages, and not this one: the handler has left its transaction with another role "+
			"(SET ROLE, SET SESSION AUTHORIZATION), which lacks a right of the endpoint's: end it with RESET ROLE: %w", err)
	}
	return fmt.Errorf("the database stores other messages, and not this one: %w", err)
}

// brokenError is the failure of a message whose handler breaks its connection to the database at
// each attempt.
type brokenError struct{ errtree.Mark }

func (e *brokenError) Error() string {
	return "the handler's connection to the database breaks at each attempt, and others do not: " + e.Mark.Error()
}

// FaultClass makes the class of the failure "connection".
func (e *brokenError) FaultClass() string { return "connection" }

// breaksAlone reports whether a handler's transaction, which was lost at each attempt of the
// delivery, is the only one: the database stores other things. A server that restarts refuses the
// first connections, which is an outage.
func (a *attempt) breaksAlone(ctx context.Context, err error) bool {
	return a.live.outage != nil && !a.Over() && !a.CompletedFirst() && ctx.Err() == nil &&
		a.storesOthers(ctx, err)
}

// granted adds advice to the error of a missing right to the tables of the outbox or inbox.
func granted(err error) error {
	if errors.Is(err, transport.ErrDenied) {
		return fmt.Errorf("%w: grant SELECT, INSERT, UPDATE and DELETE on the tables of the outbox and the inbox", err)
	}
	return err
}

// deniesIDs reports whether the right to write to the inbox is missing. The error of a transaction
// of the transport's database does not say whether the inbox or a destination was refused.
func (l *live) deniesIDs(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, outageProbe)
	defer cancel()
	return errors.Is(l.stores(ctx), transport.ErrDenied)
}

// storeAway returns why the database of the outbox or inbox cannot be used, if that is why the
// attempt ended with failure; nil otherwise. A statement of a handler, in its transaction tx, may
// have found out first, perhaps during the commit.
func (a *attempt) storeAway(ctx context.Context, tx transport.Tx, failure error) error {
	if a.live.outage == nil || a.CompletedFirst() {
		return nil
	}
	err := a.session.unit.Failure()
	if _, expired := errors.AsType[*work.ExpiredError](err); expired {
		ctx, cancel := context.WithTimeout(ctx, outageProbe)
		defer cancel()
		err = a.live.probe(ctx)
	}
	if err != nil {
		switch _, refused := errors.AsType[*transport.DispatchError](err); {
		case away(err):
			return err
		case errors.Is(err, transport.ErrNoQueue) && (a.live.outbox != nil || !refused): // not a queue that a handler sends to
			return fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
		case errors.Is(err, transport.ErrDenied) && (a.live.outbox != nil || !refused || a.live.deniesIDs(ctx)): // same
			return granted(err)
		}
	}
	if err := recordsAway(failure); err != nil {
		return err
	}
	if tx == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, outageProbe)
	defer cancel()
	if d, ok := tx.(transport.OutageDetector); ok && d.Outage(ctx, failure) {
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, failure)
	}
	if err := a.live.probe(ctx); away(err) {
		return err
	}
	return nil
}

// recordsAway returns why the records of the handlers cannot be used, if that is what failure says;
// nil otherwise.
func recordsAway(failure error) error {
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

// afterOutage returns the outcome of an attempt that found that the database of the outbox or inbox
// is down: the message waits, without a slot, until the database answers.
func (in *incoming) afterOutage(ctx context.Context, down error) outcome {
	return again{&wait{
		after: forever, event: in.live.outage.began(ctx, down), keeps: keepsKeys, late: untouched{outageMax},
	}}
}

// maxImpeded is the time after which a message fails that finds a full disk at each attempt, while
// the database stores other messages.
const maxImpeded = 10 * time.Minute

// impediment is the time in which the attempts at one delivery find a full disk, and the database
// stores other messages: the disk of one tablespace is full, or a query of the handler fills the
// disk by itself. The message waits, and no other one does.
type impediment struct {
	since time.Time // zero: there was none
	pause backoff.Backoff
}

// isImpeded reports whether an attempt has failed because of a full disk or the like, and the
// database stores something nevertheless.
func (a *attempt) isImpeded(ctx context.Context, tx transport.Tx, down error) bool {
	d, ok := tx.(transport.OutageDetector)
	if !ok {
		return false
	}
	if _, known := a.live.outage.failing(); known != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, outageProbe)
	defer cancel()
	return d.Outage(ctx, down) && a.live.stores(ctx) == nil
}

// impeded returns the outcome of an attempt at an impeded message: the message waits, without a
// slot. When the message has waited for long, it fails.
func (in *incoming) impeded(ctx context.Context, err error) outcome {
	p := &in.impediment
	if p.since.IsZero() {
		p.since, p.pause = time.Now(), backoff.Backoff{Min: outageMin, Max: outageMax}
		in.Log.WarnContext(ctx, "a message finds that the database is full, and the database stores "+
			"others: the message waits without using up a retry", slog.String("message", in.LogID()),
			slog.Duration("at_most", maxImpeded), slog.Any("error", err))
	} else if time.Since(p.since) >= maxImpeded {
		return failed{&impededError{errtree.Mark{Err: err}}}
	}
	return again{&wait{after: p.pause.Next(), late: untouched{outageMax}}}
}

// impededError is the failure of a message that was impeded for long.
type impededError struct{ errtree.Mark }

func (e *impededError) Error() string {
	return fmt.Sprintf("the database stores other messages, and not this one for %v: %v", maxImpeded,
		e.Mark.Error())
}
