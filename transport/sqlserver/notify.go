package sqlserver

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// notify tells of queues by $1, who does. Channels are those of their schemas.
const notify = `SELECT pg_notify(c, $1 || ' ' || q) FROM unnest($2::text[], $3::text[]) AS r(c, q)`

// channelOf is where receivers of a schema's queues listen. Two schemas whose names are cut may share one: they
// wake each other in vain.
func channelOf(schema string) string {
	name := "holdfast." + schema
	if len(name) <= maxName {
		return name
	}
	for name = name[:maxName]; !utf8.ValidString(name); {
		name = name[:len(name)-1]
	}
	return name
}

// heardOf gives the channel and the name by which the receivers of each of the queues hear of it.
func (s *store) heardOf(queues []string) (channels, names []string) {
	for _, q := range queues {
		schema, plain := s.split(q)
		channels, names = append(channels, channelOf(schema)), append(names, plain)
	}
	return channels, names
}

// Notify implements [tablequeue.Waker].
func (s *store) Notify(ctx context.Context, queues []string) error {
	channels, names := s.heardOf(queues)
	_, err := s.leases.Exec(ctx, notify, s.self, channels, names)
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
	if _, err := conn.Exec(ctx, "LISTEN "+quote(channelOf(s.schema))); err != nil {
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
