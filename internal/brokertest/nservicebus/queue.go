package nservicebus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Message is a message in a table.
type Message struct {
	// ID is the id of the row. Messages are sent with a new one.
	ID      string
	Headers map[string]string
	Body    []byte
	// TTL is the time until the message expires. 0: never.
	TTL time.Duration
}

// CreateQueue creates the table of a queue.
func CreateQueue(ctx context.Context, db DB, address string) error {
	_, err := db.Exec(ctx, `CREATE TABLE IF NOT EXISTS `+address+` (
	id uuid PRIMARY KEY,
	expires timestamp,
	headers text NOT NULL,
	body bytea,
	seq serial UNIQUE
)`)
	return err
}

// AddBodyString adds the column that shows bodies as text, which NServiceBus makes on demand.
func AddBodyString(ctx context.Context, db DB, address string) error {
	_, err := db.Exec(ctx, `ALTER TABLE `+address+` ADD COLUMN bodystring text GENERATED ALWAYS AS (encode(body, 'escape')) STORED`)
	return err
}

// InsertStatement returns the statement with which NServiceBus sends to address. Its parameters are
// the headers as JSON, the body, and the time to live in milliseconds or null.
func InsertStatement(address string) string {
	return `INSERT INTO ` + address + ` (id, expires, headers, body)
VALUES (gen_random_uuid(), CASE WHEN $3::bigint IS NOT NULL THEN (now() AT TIME ZONE 'UTC') + $3::bigint * interval '1 millisecond' END, $1, $2)`
}

// Send inserts a message into the table of a queue.
func Send(ctx context.Context, db DB, address string, m Message) error {
	headers, body, err := m.columns()
	if err != nil {
		return err
	}
	var ttl *int64
	if m.TTL > 0 {
		ms := m.TTL.Milliseconds()
		ttl = &ms
	}
	_, err = db.Exec(ctx, InsertStatement(address), headers, body, ttl)
	return err
}

func (m *Message) columns() (headers string, body []byte, err error) {
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	text, err := json.Marshal(m.Headers)
	return string(text), append([]byte{}, m.Body...), err
}

// Receive deletes the first row of a queue that no other transaction has locked, and returns its
// message: nil where there is none, or where the message has expired. NServiceBus calls it in the
// transaction of the handler.
func Receive(ctx context.Context, db DB, address string) (*Message, error) {
	rows, err := db.Query(ctx, `DELETE FROM `+address+` WHERE id = (
	SELECT id FROM `+address+` ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING id, coalesce(expires < now() AT TIME ZONE 'UTC', false), headers, body`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	if fields := rows.FieldDescriptions(); len(fields) > 0 && fields[0].DataTypeOID != pgtype.UUIDOID {
		return nil, fmt.Errorf("receive from %s: its id is no uuid, which NServiceBus cannot read", address)
	}
	if !rows.Next() {
		return nil, rows.Err()
	}
	var (
		m       Message
		expired bool
		headers string
	)
	if err := rows.Scan(&m.ID, &expired, &headers, &m.Body); err != nil {
		return nil, err
	}
	rows.Close()
	switch {
	case rows.Err() != nil || expired:
		return nil, rows.Err()
	case m.Body == nil:
		return nil, errors.New("receive from " + address + ": the body is null, which NServiceBus cannot read")
	}
	return &m, json.Unmarshal([]byte(headers), &m.Headers)
}

// Handle receives one message in a transaction, has it handled, and commits. It forwards a delayed
// message that has become due instead. It reports whether there was a message; an error rolls back.
func Handle(ctx context.Context, db DB, address string, handle func(tx pgx.Tx, m *Message) error) (found bool, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		m, err := Receive(ctx, tx, address)
		if err != nil || m == nil {
			return err
		}
		found = true
		if to, ok := m.Headers[ForwardDestination]; ok {
			delete(m.Headers, ForwardDestination)
			return Send(ctx, tx, to, *m)
		}
		return handle(tx, m)
	})
	return found, err
}
