package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// verify looks for the queues that would be missed only when a message fails, or has been
// processed: the start is a better time to hear of them. A transport that cannot look at queues is
// not asked.
func (l *live) verify(ctx context.Context) error {
	inspector, ok := l.conn.(transport.Inspector)
	if !ok {
		return nil
	}
	var errs []error
	for _, queue := range l.e.givenUpTo() {
		switch _, err := inspector.Inspect(ctx, queue); {
		case errors.Is(err, transport.ErrNoQueue):
			errs = append(errs, fmt.Errorf("endpoint %q: queue %q, which its configuration names: %w: create it with Config.Install or Endpoint.Install",
				l.e.cfg.Name, queue, err))
		case err != nil: // such as no right to look at it
			l.e.cfg.Logger.WarnContext(ctx, "a queue that the configuration names could not be looked for",
				slog.String("queue", queue), slog.Any("error", err))
		}
	}
	return errors.Join(errs...)
}

// givenUpTo are the error queues and the audit queue.
func (e *Endpoint) givenUpTo() []string {
	if e.cfg.SendOnly && e.cfg.Outbox == nil { // without either no message of the endpoint can fail
		return nil
	}
	queues := e.recoverability.ErrorQueues()
	if e.cfg.AuditQueue != "" {
		queues = append(queues, e.cfg.AuditQueue)
	}
	return queues
}

// verifyTables fails where a table of plan, for the outbox and the inbox, is missing, or is one
// that this program cannot use, such as one of a later version. A transport that cannot compare
// tables is not asked.
func (l *live) verifyTables(ctx context.Context, conn transport.Conn, plan transport.Plan) error {
	verifier, ok := conn.(transport.Verifier)
	if !ok {
		return nil
	}
	found, err := verifier.Verify(ctx, plan)
	if err != nil { // such as no right to look at them
		l.e.cfg.Logger.WarnContext(ctx, "the tables of the outbox could not be compared with those that this program needs",
			slog.Any("error", err))
		return nil
	}
	names := slices.Clone(plan.Inboxes)
	for _, q := range plan.Queues {
		names = append(names, q.Name)
	}
	var missing []string
	var errs []error
	for _, f := range found {
		switch {
		case !slices.Contains(names, f.Name):
		case f.State == transport.Missing:
			missing = append(missing, fmt.Sprintf("%s %q", f.Kind, f.Name))
		case f.State == transport.Differs:
			errs = append(errs, fmt.Errorf("%s %q: %s", f.Kind, f.Name, f.Detail))
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("%s: %w: create it with Config.Install or Endpoint.Install", strings.Join(missing, ", "), transport.ErrNoQueue))
	}
	return errors.Join(errs...)
}

// checkQueues finds the mistakes that New finds in the names of queues, where one queue is named in
// several forms.
func (l *live) checkQueues() error {
	var errs []error
	l.e.cfg.validateQueues(l.names.Of, func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("endpoint %q: invalid configuration: "+format, append([]any{l.e.cfg.Name}, args...)...))
	})
	return errors.Join(errs...)
}
