package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/transport"
)

// completeProcessed sends ops, the notice to ServiceControl that the retry of a failed message has
// ended with that outcome, and the audit copy of audited unless audited is nil. Then it completes
// the message, in tx if tx is not nil.
func (in *incoming) completeProcessed(
	ctx context.Context, tx transport.Tx, ops []transport.Operation, audited *attempt, outcome string,
) error {
	if audited != nil && in.e.cfg.AuditQueue == "" {
		audited = nil
	}
	notice := in.notice(ctx, outcome)
	switch {
	case notice == nil && audited == nil:
		return in.Complete(ctx, tx, ops)
	case !in.IsUnit(tx):
		return in.completeInOrder(ctx, ops, notice, audited)
	}
	for {
		all := together(ops, notice, audited)
		err := in.Complete(ctx, tx, all)
		switch {
		case notice != nil && noQueueFor(err, len(ops)):
			in.noticeFailed(ctx, notice, err)
			notice = nil
		case audited != nil && in.auditRefused(copies.ErrorOf(err, len(all)-1)):
		case err == nil && audited != nil:
			in.reportAudit(ctx)
			return nil
		default:
			return err
		}
		if tx != nil { // it is over
			return &incompleteError{errtree.Mark{Err: err}}
		}
	}
}

// completeInOrder is completeProcessed where sending several messages is no unit. The notice
// follows when ops have been sent, and the audit copy follows the notice: neither reports the
// success of an attempt whose messages were refused.
func (in *incoming) completeInOrder(
	ctx context.Context, ops []transport.Operation, notice *transport.Operation, audited *attempt,
) error {
	if len(ops) > 0 {
		if err := in.SendAhead(ops); err != nil {
			return err
		}
	}
	if notice != nil {
		err := in.SendAhead([]transport.Operation{*notice})
		switch {
		case errors.Is(err, transport.ErrNoQueue):
			in.noticeFailed(ctx, notice, err)
			notice = nil
		case err != nil:
			return fmt.Errorf("acknowledgement for ServiceControl to queue %q: %w", notice.Queue, err)
		}
	}
	if audited == nil {
		return in.Complete(ctx, nil, nil)
	}
	for {
		err := in.Complete(ctx, nil, []transport.Operation{audited.auditCopy(notice != nil)})
		switch {
		case in.auditRefused(copies.ErrorOf(err, 0)):
		case err == nil:
			in.reportAudit(ctx)
			return nil
		default:
			return fmt.Errorf("audit copy to queue %q: %w", in.e.cfg.AuditQueue, err)
		}
	}
}

// together returns ops, and behind them the notice and the audit copy of audited, which may be nil.
func together(ops []transport.Operation, notice *transport.Operation, audited *attempt) []transport.Operation {
	all := slices.Clip(ops)
	if notice != nil {
		all = append(all, *notice)
	}
	if audited != nil {
		all = append(all, audited.auditCopy(notice != nil))
	}
	return all
}

// auditCopy returns the copy for the audit queue, or for the error queue if the audit queue has
// refused it. After a notice, ServiceControl sends no audit copy of its own.
func (a *attempt) auditCopy(noticed bool) transport.Operation {
	h := fault.AuditHeaders(a.Original.Headers, 9)
	h.Set(header.ProcessingStarted, header.FormatTime(a.startedAt))
	h.Set(header.ProcessingEnded, header.FormatTime(time.Now()))
	h.Set(header.ProcessingEndpoint, a.e.host.Endpoint)
	h.Set(header.ProcessingMachine, a.e.host.Machine)
	h.Set(header.HostID, a.e.host.HostID)
	h.Set(header.HostDisplayName, a.e.host.DisplayName)
	if noticed {
		h.Set(header.RetryAcknowledged, "True")
	}
	for name, value := range a.receive.Audit.All() {
		h.Set(name, value)
	}
	op := a.CopyTo(a.e.cfg.AuditQueue, h, 0)
	op.TTL = a.e.cfg.AuditExpireAfter
	if a.audit != nil {
		return a.audit.next(op, a.live)
	}
	return op
}
