package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"unicode/utf16"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// subscribers returns the statements on the table of subscriptions: the driver's own, or one shared with NServiceBus.
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
	return s.subscription(ctx, fmt.Sprintf("subscribe queue %q", queue), s.subscribers().add, queue, types)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (s *store) Unsubscribe(ctx context.Context, queue string, types []string) error {
	return s.subscription(ctx, fmt.Sprintf("unsubscribe queue %q", queue), s.subscribers().remove, queue, types)
}

func (s *store) subscription(ctx context.Context, doing, statement, queue string, types []string) error {
	args := []any{sql.Named("queue", queue), list("types", types)}
	if s.Routing != "" {
		args = []any{sql.Named("queue", s.address(queue)), sql.Named("endpoint", cmp.Or(s.Endpoint, queue)), list("types", types)}
	}
	if _, err := s.db.ExecContext(ctx, statement, args...); err != nil {
		return noSubscriptions(doing, err)
	}
	return nil
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *store) Subscriptions(ctx context.Context) (all []tablequeue.Subscription, err error) {
	err = each(ctx, s.db, func(rows *sql.Rows) error {
		var sub tablequeue.Subscription
		err := rows.Scan(&sub.Type, &sub.Queue)
		sub.Queue = s.Name(sub.Queue)
		all = append(all, sub)
		return err
	}, s.subscribers().all)
	if err != nil {
		return nil, noSubscriptions("read subscriptions", err)
	}
	return all, nil
}

func noSubscriptions(doing string, err error) error {
	if number, ok := numberOf(err); ok && number == invalidObject {
		err = fmt.Errorf("%w: %w", tablequeue.ErrNotInstalled, err)
	}
	return &failure{doing: doing, cause: err}
}
