package postgres

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// subscribersDDL returns the table of subscriptions: the driver's own, or one of NServiceBus's shape, which is shared
// with its endpoints and has the endpoint in its key.
func (s *store) subscribersDDL() beside {
	if s.Routing == "" {
		t := quote(s.Schema, dialect.SubscriptionTable)
		return beside{t, `CREATE TABLE IF NOT EXISTS ` + t + ` (type text, queue text, PRIMARY KEY (type, queue))`}
	}
	t := quote(s.Schema, s.Routing)
	return beside{t, `CREATE TABLE IF NOT EXISTS ` + t + ` (
	queueaddress varchar(200) NOT NULL,
	endpoint varchar(200) NOT NULL,
	topic varchar(200) NOT NULL,
	PRIMARY KEY (endpoint, topic)
)`}
}

// Subscribe implements [tablequeue.Subscriptions].
func (s *store) Subscribe(ctx context.Context, queue string, types []string) error {
	t := s.subscribersDDL().quoted
	doing := fmt.Sprintf("subscribe queue %q", queue)
	if s.Routing == "" {
		return s.subscription(ctx, doing, `INSERT INTO `+t+` (type, queue)
SELECT t, $1 FROM unnest($2::text[]) AS t ON CONFLICT DO NOTHING`, queue, types)
	}
	return s.subscription(ctx, doing, `INSERT INTO `+t+` (endpoint, queueaddress, topic)
SELECT DISTINCT $1, $2, t FROM unnest($3::text[]) AS t
ON CONFLICT (endpoint, topic) DO UPDATE SET queueaddress = excluded.queueaddress`,
		s.subscriber(queue), quote(s.split(queue)), types)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (s *store) Unsubscribe(ctx context.Context, queue string, types []string) error {
	t := s.subscribersDDL().quoted
	doing := fmt.Sprintf("unsubscribe queue %q", queue)
	if s.Routing == "" {
		return s.subscription(ctx, doing, `DELETE FROM `+t+` WHERE queue = $1 AND type = ANY ($2::text[])`, queue, types)
	}
	return s.subscription(ctx, doing, `DELETE FROM `+t+` WHERE endpoint = $1 AND topic = ANY ($2::text[])`, s.subscriber(queue), types)
}

// subscriberAddress returns the column and the value by which the table of subscriptions names a queue.
func (s *store) subscriberAddress(queue string) (column, value string) {
	if s.Routing == "" {
		return "queue", queue
	}
	return "queueaddress", quote(s.split(queue))
}

// subscriber returns the endpoint of a queue's subscriptions.
func (s *store) subscriber(queue string) string { return cmp.Or(s.Endpoint, queue) }

func (s *store) subscription(ctx context.Context, doing, text string, args ...any) error {
	if _, err := s.writes.Exec(ctx, text, args...); err != nil {
		return s.noSubscriptions(doing, err)
	}
	return nil
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *store) Subscriptions(ctx context.Context) ([]tablequeue.Subscription, error) {
	t, columns := s.subscribersDDL().quoted, "type, queue"
	if s.Routing != "" {
		columns = "topic, queueaddress"
	}
	rows, err := s.writes.Query(ctx, `SELECT `+columns+` FROM `+t+` ORDER BY 1, 2`)
	if err != nil {
		return nil, s.noSubscriptions("read subscriptions", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[tablequeue.Subscription])
	if err != nil {
		return nil, s.noSubscriptions("read subscriptions", err)
	}
	for i := range all {
		all[i].Queue = s.Name(all[i].Queue)
	}
	return all, nil
}

// Name implements [tablequeue.Namer]. It leaves out the store's own schema.
func (s *store) Name(queue string) string {
	if queue == "" || queue[0] != '"' {
		return queue
	}
	if schema, plain := s.split(queue); schema == s.Schema {
		return plain
	}
	return queue
}

func (s *store) noSubscriptions(doing string, err error) error {
	if code(err) == undefinedTable {
		err = fmt.Errorf("%w: %w", tablequeue.ErrNotInstalled, err)
	}
	return fmt.Errorf("postgres: %s: %w", doing, err)
}
