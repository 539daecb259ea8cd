package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// examined is the part of a queue's table that decides on findings.
type examined struct {
	Ours    bool // has our columns
	Text    bool // has ids of type text
	Unique  bool // has a unique index on id
	Adopted bool // was created by NServiceBus
	Timers  bool // has what named rows need
	Last    int64
	Most    int64 // the last value of seq
	Filters string
	Theirs  bool // NServiceBus's table of subscriptions is in the schema, and not used
}

func (s *store) examination(t *table) string {
	sequence := `pg_get_serial_sequence(` + literal(t.quoted) + `, 'seq')::regclass`
	return `SELECT ` + isOurs(t) + `, ` + idIs(t, "text") + `, ` + uniqueColumn(t, "id") + `, ` + isAdopted(t) + `, ` + s.hasTimers(t) + `,
	greatest(coalesce((SELECT max(seq) FROM ` + t.quoted + `), 0),
		CASE WHEN has_sequence_privilege(` + sequence + `, 'USAGE, SELECT') THEN pg_sequence_last_value(` + sequence + `) END),
	least((SELECT CASE WHEN atttypid = 'integer'::regtype THEN 2147483647 ELSE 9223372036854775807 END FROM pg_attribute
		WHERE attrelid = ` + regclass(t.quoted) + ` AND attname = 'seq'), (SELECT seqmax FROM pg_sequence WHERE seqrelid = ` + sequence + `)),
	` + filters(regclass(t.quoted)) + `, ` + s.unsharedRouting()
}

func (s *store) examine(ctx context.Context, t *table) (examined, error) {
	rows, _ := s.writes.Query(ctx, s.examination(t), pgx.QueryExecModeExec) // an error is that of rows too
	e, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[examined])
	return e, s.failed(err, "look at queue %q", t.name)
}

// Examine implements [tablequeue.Examiner].
func (s *store) Examine(ctx context.Context, q transport.Queue) ([]tablequeue.Remark, error) {
	t := s.table(q.Name)
	e, err := s.examine(ctx, t)
	if err != nil {
		return nil, err
	}
	if e.Ours {
		t.takesRows.Store(true)
	}
	var all []tablequeue.Remark
	differs := func(text string) { all = append(all, tablequeue.Remark{State: transport.Differs, Text: text}) }
	if !e.Ours && !q.Shared {
		refused, err := s.refused(ctx, t)
		if err != nil {
			return nil, s.failed(err, "look at queue %q", q.Name)
		}
		if refused != "" {
			differs(refused)
		}
	}
	if e.Ours && q.Shared {
		switch {
		case e.Text:
			differs(`its ids are text, which ServiceControl cannot read: "holdfast endpoint create --adopt" rewrites the table`)
		case !e.Unique:
			differs(`it has no unique index on id, by which ServiceControl receives: "holdfast endpoint create --adopt" creates one`)
		}
	}
	if e.Ours && q.Timers && !e.Timers {
		differs(tablequeue.ErrNoTimers.Error())
	}
	note := func(text string) { all = append(all, tablequeue.Remark{State: transport.Noted, Text: text}) }
	if e.Adopted {
		note("it was taken over from NServiceBus, which ignores leases and delays: its endpoint must not receive from it again")
	}
	for _, text := range e.warnings() {
		note(text)
	}
	if e.Theirs && e.Ours && !q.Shared {
		note(routingAdvice)
	}
	return all, nil
}

// warnings returns the failures that e foretells.
func (e examined) warnings() (all []string) {
	if text := e.nearEnd(); text != "" {
		all = append(all, text)
	}
	if text := filterWarning(e.Filters); text != "" && e.Ours {
		all = append(all, text)
	}
	return all
}

// nearEnd returns the warning that the numbers of rows will be used up, from the half of them on.
func (e examined) nearEnd() string {
	if e.Last <= e.Most/2 {
		return ""
	}
	return fmt.Sprintf("seq has reached %d of %d, after which nothing can be sent to it: widen seq to bigint, as docs/transports/postgres.md describes", e.Last, e.Most)
}

// Warnings implements [tablequeue.Warner].
func (s *store) Warnings(ctx context.Context, queues []string) (all []string, err error) {
	for _, q := range queues {
		e, err := s.examine(ctx, s.table(q))
		if err != nil {
			return all, err
		}
		for _, text := range e.warnings() {
			all = append(all, fmt.Sprintf("queue %q: %s", q, text))
		}
	}
	return all, nil
}
