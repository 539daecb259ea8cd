package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/transport"
)

// verify looks for the queues that would be missed only when a message fails, or has been processed: the start is a
// better time to hear of them. A transport that cannot look at queues is not asked.
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
