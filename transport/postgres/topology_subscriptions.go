package postgres

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// subscribers is the table of subscriptions with its statements. Their parameters are @queue, the
// address by which the table names a queue, @endpoint and @types.
type subscribers struct{ table, columns, add, remove, all, forget string }

// subscribers returns the driver's own table, or one of NServiceBus's shape, which is shared with
// its endpoints and has the endpoint in its key.
func (s *store) subscribers() subscribers {
	if s.Routing == "" {
		t := quote(s.Schema, dialect.SubscriptionTable)
		return subscribers{
			table: t, columns: ` (type text, queue text, PRIMARY KEY (type, queue))`,
			add: `INSERT INTO ` + t + ` (type, queue)
SELECT t, @queue FROM unnest(@types::text[]) AS t ON CONFLICT DO NOTHING`,
			remove: `DELETE FROM ` + t + ` WHERE queue = @queue AND type = ANY (@types::text[])`,
			all:    `SELECT type, queue FROM ` + t + ` ORDER BY 1, 2`,
			forget: `DELETE FROM ` + t + ` WHERE queue = `,
		}
	}
	t := quote(s.Schema, s.Routing)
	return subscribers{
		table: t, columns: ` (
	queueaddress varchar(200) NOT NULL,
	endpoint varchar(200) NOT NULL,
	topic varchar(200) NOT NULL,
	PRIMARY KEY (endpoint, topic)
)`,
		add: `INSERT INTO ` + t + ` (endpoint, queueaddress, topic)
SELECT DISTINCT @endpoint, @queue, t FROM unnest(@types::text[]) AS t
ON CONFLICT (endpoint, topic) DO UPDATE SET queueaddress = excluded.queueaddress`,
		remove: `DELETE FROM ` + t + ` WHERE endpoint = @endpoint AND topic = ANY (@types::text[])`,
		all:    `SELECT topic, queueaddress FROM ` + t + ` ORDER BY 1, 2`,
		forget: `DELETE FROM ` + t + ` WHERE queueaddress = `,
	}
}

// subscriber returns the name of a queue in the table of subscriptions.
func (s *store) subscriber(queue string) string {
	if s.Routing == "" {
		return queue
	}
	return s.Address(queue)
}

// Subscribe implements [tablequeue.Subscriptions].
func (s *store) Subscribe(ctx context.Context, queue string, types []string) error {
	return noSubscriptions(s.subscription(ctx, s.subscribers().add, queue, types), "subscribe queue %q", queue)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (s *store) Unsubscribe(ctx context.Context, queue string, types []string) error {
	return noSubscriptions(s.subscription(ctx, s.subscribers().remove, queue, types), "unsubscribe queue %q", queue)
}

func (s *store) subscription(ctx context.Context, text, queue string, types []string) error {
	args := pgx.NamedArgs{"queue": s.subscriber(queue), "endpoint": cmp.Or(s.Endpoint, queue), "types": types}
	_, err := s.writes.Exec(ctx, text, args)
	return err
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *store) Subscriptions(ctx context.Context) ([]tablequeue.Subscription, error) {
	rows, _ := s.writes.Query(ctx, s.subscribers().all) // an error is that of rows too
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[tablequeue.Subscription])
	for i := range all {
		all[i].Queue = s.ShortName(all[i].Queue)
	}
	return all, noSubscriptions(err, "read subscriptions")
}

// noSubscriptions is failure, but with [tablequeue.ErrNotInstalled] where the table of
// subscriptions is missing.
func noSubscriptions(err error, doing string, args ...any) error {
	if code(err) == undefinedTable {
		err = fmt.Errorf("%w: %w", tablequeue.ErrNotInstalled, err)
	}
	return failure(err, doing, args...)
}

// theirRouting is NServiceBus's default name of its table of subscriptions.
const theirRouting = "SubscriptionRouting"

// unsharedRouting returns the expression that is true if the schema has a table of subscriptions of
// NServiceBus, which the driver does not use.
func (s *store) unsharedRouting() string {
	return fmt.Sprintf("%t AND %s IS NOT NULL", s.Routing == "", regclass(quote(s.Schema, theirRouting)))
}

const routingAdvice = "the schema has a table SubscriptionRouting, as NServiceBus creates it, and SubscriptionRouting of the Transport is not set: " +
	"no event crosses between these endpoints and those of NServiceBus. Set it to \"SubscriptionRouting\" in every endpoint"

// warnOfRouting logs once that a table of subscriptions of NServiceBus is not used.
func (s *store) warnOfRouting(ctx context.Context) error {
	if s.Routing != "" || !s.routingAsked.CompareAndSwap(false, true) {
		return nil
	}
	var unshared bool
	err := s.writes.QueryRow(ctx, "SELECT "+s.unsharedRouting(), pgx.QueryExecModeExec).Scan(&unshared)
	if err != nil {
		s.routingAsked.Store(false)
		return err
	}
	if unshared {
		s.log.WarnContext(ctx, "events of NServiceBus are not subscribed to", slog.String("reason", routingAdvice))
	}
	return nil
}
