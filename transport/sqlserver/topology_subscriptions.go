package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"unicode/utf16"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// subscribers returns the statements on the table of subscriptions: the driver's own, or one shared
// with NServiceBus.
func (s *store) subscribers() subscriptionStatements {
	if s.Routing != "" {
		return newRouting(s.Schema, s.Routing)
	}
	return newSubscriptions(s.Schema)
}

// Subscribe implements [tablequeue.Subscriptions].
func (s *store) Subscribe(ctx context.Context, queue string, types []string) error {
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
func (s *store) Unsubscribe(ctx context.Context, queue string, types []string) error {
	return noSubscriptions(s.subscription(ctx, s.subscribers().remove, queue, types), "unsubscribe queue %q", queue)
}

func (s *store) subscription(ctx context.Context, statement, queue string, types []string) error {
	args := []any{sql.Named("queue", s.subscriber(queue)), list("types", types)}
	if s.Routing != "" {
		args = append(args, sql.Named("endpoint", cmp.Or(s.Endpoint, queue)))
	}
	_, err := s.db.ExecContext(ctx, statement, args...)
	return err
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *store) Subscriptions(ctx context.Context) (all []tablequeue.Subscription, err error) {
	err = each(ctx, s.db, func(rows *sql.Rows) error {
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
