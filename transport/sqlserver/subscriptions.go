package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"unicode/utf16"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// subscriptions is the part of a store with the table of subscriptions.
type subscriptions struct{ *db }

// subscribers returns the statements on the table of subscriptions: the driver's own, or one shared
// with NServiceBus.
func (s *schema) subscribers() subscriptionStatements {
	if s.Routing != "" {
		return newRouting(s.Schema, s.Routing)
	}
	return newSubscriptions(s.Schema)
}

// Subscribe implements [tablequeue.Subscriptions].
func (s *subscriptions) Subscribe(ctx context.Context, queue string, types []string) error {
	most := maxType
	if s.Routing != "" {
		most = maxTopic
	}
	for _, t := range types {
		if n := len(utf16.Encode([]rune(t))); n > most {
			return fmt.Errorf("sqlserver: subscribe queue %q: type %q has %d characters: at most %d can be subscribed to", queue, t, n, most)
		}
	}
	return noSubscriptions(s.subscription(ctx, s.subscribers().add, queue, types), "subscribe queue %q", queue)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (s *subscriptions) Unsubscribe(ctx context.Context, queue string, types []string) error {
	return noSubscriptions(s.subscription(ctx, s.subscribers().remove, queue, types), "unsubscribe queue %q", queue)
}

func (s *subscriptions) subscription(
	ctx context.Context, statement, queue string, types []string,
) error {
	args := []any{sql.Named("queue", s.subscriber(queue)), list("types", types)}
	if s.Routing != "" {
		args = append(args, sql.Named("endpoint", cmp.Or(s.Endpoint, queue)))
	}
	_, err := s.engine.ExecContext(ctx, statement, args...)
	return err
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *subscriptions) Subscriptions(
	ctx context.Context,
) (all []tablequeue.Subscription, err error) {
	err = each(ctx, s.engine, func(rows *sql.Rows) error {
		var sub tablequeue.Subscription
		err := rows.Scan(&sub.Type, &sub.Queue)
		sub.Queue = s.ShortName(sub.Queue)
		all = append(all, sub)
		return err
	}, s.subscribers().all)
	return all, noSubscriptions(err, "read subscriptions")
}

// noSubscriptions is failed, but with [tablequeue.ErrNotInstalled] where the table of subscriptions
// is missing.
func noSubscriptions(err error, doing string, args ...any) error {
	if numberOf(err) == invalidObject {
		err = fmt.Errorf("%w: %w", tablequeue.ErrNotInstalled, err)
	}
	return failed(err, doing, args...)
}

// subscriptionStatements are the statements on the table of subscriptions. Types differ by case,
// whatever the database's collation.
type subscriptionStatements struct{ create, add, remove, all, forget string }

// The longest names of types. In the driver's own table they are part of a key, which has at most
// 900 bytes.
const (
	maxType  = 300
	maxTopic = 200
)

func newSubscriptions(schema string) subscriptionStatements {
	q := quote(schema, dialect.SubscriptionTable)
	const types = `(SELECT DISTINCT r.[type] COLLATE Latin1_General_BIN2 AS [type]
	FROM OPENJSON(@types) WITH ([type] nvarchar(300) '$') AS r)`
	return subscriptionStatements{
		create: `IF object_id(` + literal(q) + `, N'U') IS NULL
	CREATE TABLE ` + q + ` (
		[type] nvarchar(300) COLLATE Latin1_General_BIN2 NOT NULL,
		queue nvarchar(128) COLLATE Latin1_General_BIN2 NOT NULL,
		PRIMARY KEY ([type], queue));`,
		add: `INSERT INTO ` + q + ` ([type], queue)
SELECT wanted.[type], @queue FROM ` + types + ` AS wanted
WHERE NOT EXISTS (SELECT 1 FROM ` + q + ` AS s WITH (UPDLOCK, HOLDLOCK) WHERE s.[type] = wanted.[type] AND s.queue = @queue);`,
		remove: `DELETE FROM ` + q + ` WHERE queue = @queue AND [type] IN ` + types + `;`,
		all:    `SELECT [type], queue FROM ` + q + ` ORDER BY [type], queue`,
		forget: `IF object_id(` + literal(q) + `, N'U') IS NOT NULL DELETE FROM ` + q + ` WHERE queue = @queue;`,
	}
}

// newRouting returns the statements on a table of NServiceBus's shape, which is shared with its
// endpoints and has the endpoint in its key.
func newRouting(schema, table string) subscriptionStatements {
	q := quote(schema, table)
	const types = `(SELECT DISTINCT r.[type] FROM OPENJSON(@types) WITH ([type] nvarchar(200) '$') AS r)`
	return subscriptionStatements{
		create: `IF object_id(` + literal(q) + `, N'U') IS NULL
	CREATE TABLE ` + q + ` (
		QueueAddress nvarchar(200) NOT NULL,
		Endpoint nvarchar(200) NOT NULL,
		Topic nvarchar(200) NOT NULL,
		PRIMARY KEY CLUSTERED (Endpoint, Topic));`,
		add: `UPDATE ` + q + ` SET QueueAddress = @queue WHERE Endpoint = @endpoint AND Topic IN ` + types + `;
INSERT INTO ` + q + ` (QueueAddress, Endpoint, Topic)
SELECT @queue, @endpoint, wanted.[type] FROM ` + types + ` AS wanted
WHERE NOT EXISTS (SELECT 1 FROM ` + q + ` AS s WITH (UPDLOCK, HOLDLOCK) WHERE s.Endpoint = @endpoint AND s.Topic = wanted.[type]);`,
		remove: `DELETE FROM ` + q + ` WHERE Endpoint = @endpoint AND Topic IN ` + types + `;`,
		all:    `SELECT Topic, QueueAddress FROM ` + q + ` ORDER BY Topic, QueueAddress`,
		forget: `IF object_id(` + literal(q) + `, N'U') IS NOT NULL DELETE FROM ` + q + ` WHERE QueueAddress = @queue;`,
	}
}
