package postgres

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// subscriptions is the part of a store with the table of subscriptions.
type subscriptions struct{ *db }

// subscribers is the table of subscriptions with its statements. Their parameters are @queue, the
// address by which the table names a queue, @endpoint and @types.
type subscribers struct{ table, columns, add, remove, all, forget string }

// subscribers returns the driver's own table, or one of NServiceBus's shape, which is shared with
// its endpoints and has the endpoint in its key.
func (s *schema) subscribers() subscribers {
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
func (s *schema) subscriber(queue string) string {
	if s.Routing == "" {
		return queue
	}
	return s.Address(queue)
}

// theirRouting is NServiceBus's default name of its table of subscriptions.
const theirRouting = "SubscriptionRouting"

// unsharedRouting returns the expression that is true if the schema has a table of subscriptions of
// NServiceBus, which the driver does not use.
func (s *schema) unsharedRouting() string {
	return fmt.Sprintf("%t AND %s IS NOT NULL", s.Routing == "", regclass(quote(s.Schema, theirRouting)))
}

// Subscribe implements [tablequeue.Subscriptions].
func (s *subscriptions) Subscribe(ctx context.Context, queue string, types []string) error {
	return noSubscriptions(s.subscription(ctx, s.subscribers().add, queue, types), "subscribe queue %q", queue)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (s *subscriptions) Unsubscribe(ctx context.Context, queue string, types []string) error {
	return noSubscriptions(s.subscription(ctx, s.subscribers().remove, queue, types), "unsubscribe queue %q", queue)
}

func (s *subscriptions) subscription(ctx context.Context, text, queue string, types []string) error {
	args := pgx.NamedArgs{"queue": s.subscriber(queue), "endpoint": cmp.Or(s.Endpoint, queue), "types": types}
	_, err := s.writes.Exec(ctx, text, args)
	return err
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *subscriptions) Subscriptions(ctx context.Context) ([]tablequeue.Subscription, error) {
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
