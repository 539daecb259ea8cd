package postgres

import (
	"context"
	"strings"
)

// notify sends the sender $1 and a queue of $3 as a notification on each channel of $2.
const notify = `SELECT pg_notify(c, $1 || ' ' || q) FROM unnest($2::text[], $3::text[]) AS r(c, q)`

// channelOf returns the channel on which receivers of a schema's queues listen. Two schemas with
// long names may share one, and wake each other's receivers without need.
func channelOf(schema string) string {
	return truncated("holdfast."+schema, maxName)
}

// heardOf returns the channel of each of queues, and its name in notifications.
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
	return failure(err, "notify")
}

// Listen implements [tablequeue.Waker]. Without a listener it waits for the end of ctx.
func (s *store) Listen(ctx context.Context, ready func(), wake func(queue string)) error {
	s.commits.wakesBy(wake)
	if s.listener == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return s.listener.listen(ctx, &hearer{
		channel: channelOf(s.Schema),
		ready:   ready,
		heard: func(payload string) {
			if from, queue, ok := strings.Cut(payload, " "); ok && from != s.self {
				wake(s.shortName(s.Schema, queue))
			}
		},
	})
}
