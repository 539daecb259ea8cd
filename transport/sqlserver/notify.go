package sqlserver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Notify implements [tablequeue.Waker].
func (s *store) Notify(ctx context.Context, queues []string) error {
	for i, q := range queues {
		queues[i] = s.told(q)
	}
	_, err := s.leases.Exec(ctx, `SELECT pg_notify($1, $2 || ' ' || q)
FROM unnest($3::text[]) AS q`, s.channel, s.self, queues)
	if err != nil {
		return fmt.Errorf("postgres: notify: %w", err)
	}
	return nil
}

// Listen implements [tablequeue.Waker], on a connection of its own. Where there can be none, nothing is heard.
func (s *store) Listen(ctx context.Context, ready func(), wake func(queue string)) error {
	if s.listener == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	conn, err := pgx.ConnectConfig(ctx, s.listener)
	if err != nil {
		return fmt.Errorf("postgres: listen: %w", err)
	}
	defer closeSoon(conn)
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{s.channel}.Sanitize()); err != nil {
		return fmt.Errorf("postgres: listen: %w", err)
	}
	ready()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("postgres: listen: %w", err)
		}
		if from, queue, ok := strings.Cut(n.Payload, " "); ok && from != s.self {
			wake(queue)
		}
	}
}

// closeSoon closes conn also when the context of its owner has ended.
func closeSoon(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
