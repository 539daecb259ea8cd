package nservicebus

import (
	"context"
	"maps"
	"time"
)

// ForwardDestination is the header with the address that a delayed message is for.
const ForwardDestination = "NServiceBus.SqlServer.ForwardDestination"

// CreateDelayed creates the table of an endpoint's delayed messages.
func CreateDelayed(ctx context.Context, db DB, delayed string) error {
	_, err := db.Exec(ctx, `CREATE TABLE IF NOT EXISTS `+delayed+` (
	id uuid NOT NULL DEFAULT gen_random_uuid(),
	headers text NOT NULL,
	body bytea,
	due timestamptz NOT NULL
)`)
	return err
}

// Delay stores a message for the queue at destination in the sender's table of delayed messages.
// NServiceBus writes the time in UTC as a local time of the session: in a session with another time
// zone the value is off by its offset.
func Delay(ctx context.Context, db DB, delayed, destination string, m Message, delay time.Duration) error {
	m.Headers = maps.Clone(m.Headers)
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	m.Headers[ForwardDestination] = destination
	headers, body, err := m.columns()
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, `INSERT INTO `+delayed+` (headers, body, due)
VALUES ($1, $2, (now() AT TIME ZONE 'UTC') + $3::bigint * interval '1 millisecond')`, headers, body, delay.Milliseconds())
	return err
}

// MoveDue moves up to limit delayed messages that are due into the queue of the endpoint that has
// delayed them, and returns their number. [Handle] then forwards them.
func MoveDue(ctx context.Context, db DB, delayed, queue string, limit int) (int64, error) {
	tag, err := db.Exec(ctx, `WITH due AS (
	DELETE FROM `+delayed+` WHERE id IN (SELECT id FROM `+delayed+` WHERE due < now() AT TIME ZONE 'UTC' LIMIT $1)
	RETURNING id, headers, body
) INSERT INTO `+queue+` (id, headers, body) SELECT id, headers, body FROM due`, limit)
	return tag.RowsAffected(), err
}
