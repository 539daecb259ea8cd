package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// checkQueues finds the mistakes that New finds in the names of queues, where one queue is named in
// several forms.
func checkQueues(l *launch) error {
	var errs []error
	l.e.cfg.validateQueues(l.names.Of, func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("endpoint %q: invalid configuration: "+format, append([]any{l.e.cfg.Name}, args...)...))
	})
	return errors.Join(errs...)
}

// offeredRetries returns Recoverability without the retries that the transport or the transaction
// mode does not offer. It returns an error for each policy that the transport cannot carry out.
func offeredRetries(ctx context.Context, l *launch) (recoverability.Config, error) {
	c := l.e.cfg.Recoverability
	if l.e.cfg.SendOnly {
		return c, nil
	}
	offer := recovery.Offer{
		Endpoint: l.e.cfg.Name, Limits: l.Limits, CompletesFirst: l.e.cfg.Transactions == None,
		LongestAttempt: l.layout.longestAttempt, Log: l.e.cfg.Logger,
	}
	if err := offer.Check(c); err != nil {
		return c, err //nolint:wrapcheck // the error names the endpoint
	}
	return offer.Effective(ctx, c), nil
}

// verifyTables returns an error if a table of plan, for the outbox and the inbox, is missing or
// cannot be used, for example because a later version has made the table. If the transport cannot
// compare tables, there is no error.
func verifyTables(ctx context.Context, l *launch, conn transport.Conn, plan transport.Plan) error {
	verifier, ok := conn.(transport.Verifier)
	if !ok {
		return nil
	}
	found, err := verifier.Verify(ctx, plan)
	if err != nil { // perhaps for lack of a right
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

// verifyRecords fails where the database cannot store the records of the handlers.
func verifyRecords(ctx context.Context, l *launch) error {
	kinds := l.layout.records()
	if len(kinds) == 0 {
		return nil
	}
	inspector, err := recordsIn(l.database())
	if err != nil {
		return err
	}
	_, err = inspector.InspectRecords(ctx, kinds[0])
	if errors.Is(err, transport.ErrNoQueue) {
		return fmt.Errorf("records of %q: %w: create the table with Config.Install or Endpoint.Install", kinds[0], err)
	}
	return err //nolint:wrapcheck // the caller names the endpoint
}

// verifyQueues looks for the error queues and the audit queue. Without this search a missing queue
// would be noticed when the first message has failed or has been processed.
func verifyQueues(ctx context.Context, l *launch) error {
	var errs []error
	for _, queue := range l.layout.givenUpTo() {
		switch _, err := inspect(ctx, l.conn, queue); {
		case errors.Is(err, transport.ErrNoQueue):
			errs = append(errs, fmt.Errorf("endpoint %q: queue %q, which its configuration names: %w: create it with Config.Install or Endpoint.Install",
				l.e.cfg.Name, queue, err))
		case err != nil: // perhaps for lack of a right
			l.e.cfg.Logger.WarnContext(ctx, "a queue that the configuration names could not be looked for",
				slog.String("queue", queue), slog.Any("error", err))
		}
	}
	return errors.Join(errs...)
}

// inspect returns the state of a queue. If the transport cannot inspect queues, there is no state
// and no error.
func inspect(
	ctx context.Context, conn transport.Conn, queue string,
) ([]transport.QueueStats, error) {
	inspector, ok := conn.(transport.Inspector)
	if !ok {
		return nil, nil
	}
	return inspector.Inspect(ctx, queue) //nolint:wrapcheck // the caller names the queue
}

// subscribe subscribes the endpoint's queue to the events that have handlers.
func subscribe(ctx context.Context, l *launch) error {
	types := l.e.types.subscribed()
	if len(types) == 0 {
		return nil
	}
	s, ok := l.conn.(transport.Subscriber)
	if !ok {
		return fmt.Errorf("endpoint %q: subscribe to %q: the transport cannot publish", l.e.cfg.Name, types)
	}
	if d, ok := l.conn.(transport.DerivedSubscriber); ok && d.SubscribesDerived() {
		warnOfBases(ctx, l, types)
		types = l.e.types.withDerived(types)
	}
	if err := s.Subscribe(ctx, l.e.cfg.Name, types); err != nil {
		return fmt.Errorf("endpoint %q: subscribe: %w", l.e.cfg.Name, err)
	}
	return nil
}

// warnOfBases logs each type that is a base type by name, if no registered event derives from the
// type: events that are published under the derived type alone do not arrive.
func warnOfBases(ctx context.Context, l *launch, types []string) {
	for _, name := range types {
		if isInterface(name) && !l.e.types.hasDerived(name) {
			l.e.cfg.Logger.WarnContext(ctx, "no registered event has this base type: events that derive from it and are published "+
				"under their own type alone do not arrive: register each of them in Config.Messages with this base type",
				slog.String("base", name))
		}
	}
}

// isInterface reports whether a type is an interface by the naming convention of .NET, such as
// Shop.IOrderEvent.
func isInterface(typeName string) bool {
	short, ok := strings.CutPrefix(typeName[strings.LastIndexAny(typeName, ".+")+1:], "I")
	next, _ := utf8.DecodeRuneInString(short)
	return ok && unicode.IsUpper(next)
}

// Install creates what the endpoint needs at its broker, and in the database of its outbox, and
// leaves alone what is there: its queues, the error queues and the audit queue, the tables of the
// outbox and of handled messages, and what its published and handled types need. It opens
// connections of its own; the endpoint need not run.
func (e *Endpoint) Install(ctx context.Context) error {
	needs := layout{&e.cfg, e.types}
	conn, err := connect(ctx, e, nil)
	if err != nil {
		return err
	}
	err = errors.Join(installIn(ctx, e.cfg.Name, conn, needs.plan()), conn.Close())
	outbox, oerr := openOutbox(ctx, e, nil)
	if oerr == nil && outbox != nil {
		oerr = errors.Join(installIn(ctx, e.cfg.Name, outbox.Conn, needs.databasePlan()), outbox.Conn.Close())
	}
	return errors.Join(err, oerr)
}

// installIn creates plan at the broker, or in the database of the outbox, by conn.
func installIn(ctx context.Context, endpoint string, conn transport.Conn, plan transport.Plan) error {
	installer, ok := conn.(transport.Installer)
	if !ok {
		return fmt.Errorf("endpoint %q: install: the transport cannot create queues: create them by other means", endpoint)
	}
	if len(plan.Records) > 0 {
		if _, err := recordsIn(conn); err != nil {
			return fmt.Errorf("endpoint %q: install: %w", endpoint, err)
		}
	}
	if _, ok := conn.(transport.OutboxStore); !ok {
		plan.Queues = slices.DeleteFunc(plan.Queues, func(q transport.Queue) bool { return q.Timers })
	}
	if err := installer.Install(ctx, plan); err != nil {
		return fmt.Errorf("endpoint %q: install: %w", endpoint, err)
	}
	return nil
}

// recordsIn returns the inspector of the database of conn. It returns an error if the database
// cannot store records.
func recordsIn(conn transport.Conn) (transport.StateInspector, error) {
	inspector, ok := conn.(transport.StateInspector)
	if !ok {
		return nil, errors.New("there are handlers with state, and the database cannot store it: use a transport on a SQL database")
	}
	return inspector, nil
}
