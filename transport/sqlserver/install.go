package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// installer is the part of a store that creates and removes tables.
type installer struct {
	*db
	ddl    ddl
	adopts bool // Install changes tables that exist
}

// Install implements [tablequeue.Topology]. One process at a time installs.
func (in *installer) Install(ctx context.Context, plan transport.Plan) error {
	if in.adopts {
		if err := in.adopt(ctx, plan); err != nil {
			return failed(err, "adopt tables")
		}
	}
	err := in.installing(ctx, func(tx *sql.Tx) error {
		for _, step := range in.ddl.installation(plan) {
			if _, err := tx.ExecContext(ctx, step.statement); err != nil {
				return fmt.Errorf("%s: %w", step.of, err)
			}
		}
		return nil
	})
	return failed(err, "install")
}

// installerName is the name of the lock of an installer.
func installerName(schema string) string { return "holdfast install " + schema }

// installing calls do in a transaction in which no other process installs.
func (in *installer) installing(ctx context.Context, do func(tx *sql.Tx) error) error {
	return in.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, installLock, sql.Named("name", installerName(in.Schema))); err != nil {
			return err
		}
		return do(tx)
	})
}

// Remove implements [tablequeue.Topology].
func (in *installer) Remove(ctx context.Context, queues []string) error {
	err := in.installing(ctx, func(tx *sql.Tx) error {
		for _, q := range queues {
			t, inbox := in.table(q), in.inbox(q)
			for _, statement := range []string{inbox.drop, inbox.unnote, t.drop, t.forget, in.subscribers().forget} {
				if _, err := tx.ExecContext(ctx, statement, sql.Named("queue", in.subscriber(q))); err != nil {
					return fmt.Errorf("queue %q: %w", q, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return failed(err, "remove queues")
	}
	for _, q := range queues {
		in.tables.Set(q, newTable(in.Schema, in.place(q), traits{}))
	}
	return nil
}

// ddl composes the statements of the installer.
type ddl struct{ *schema }

type step struct{ of, statement string }

// own is the number of steps of an installation before those of the queues.
const own = 3

// installation returns the statements that create the missing parts of plan.
func (d *ddl) installation(plan transport.Plan) []step {
	steps := []step{
		{fmt.Sprintf("schema %q", d.Schema), createSchema(d.Schema)},
		{"versions", newVersions(d.Schema).create},
		{"subscriptions", d.subscribers().create},
	}
	for _, q := range plan.Queues {
		t := d.table(q.Name)
		create := t.create
		if q.Shared {
			create = t.createShared
		}
		steps = append(steps, step{fmt.Sprintf("queue %q", q.Name), create}, step{fmt.Sprintf("queue %q", q.Name), t.note})
		if q.Timers {
			of := fmt.Sprintf("timers of queue %q", q.Name)
			steps = append(steps, step{of, t.addNames}, step{of, t.indexNames})
		}
	}
	steps = append(steps, d.installInboxes(plan.Inboxes)...)
	if len(plan.Records) > 0 {
		steps = append(steps, d.installRecords()...)
	}
	return steps
}

// installInboxes returns the statements that create inboxes and their versions.
func (d *ddl) installInboxes(inboxes []string) (steps []step) {
	if len(inboxes) > 0 {
		steps = append(steps, step{"versions of inboxes", createInboxVersions(d.Schema)})
	}
	for _, name := range inboxes {
		t, of := d.inbox(name), fmt.Sprintf("inbox %q", name)
		steps = append(steps, step{of, t.create}, step{of, t.note})
	}
	return steps
}

// installRecords returns the statements that create the table of records and its version, which is
// among those of inboxes.
func (d *ddl) installRecords() []step {
	st := d.records()
	return []step{
		{"versions of inboxes", createInboxVersions(d.Schema)}, {"table of records", st.create}, {"table of records", st.note},
	}
}

// Script returns the installer's statements for plan as text for sqlcmd. It needs no connection.
// Executed again, the text changes nothing. It does not change tables of NServiceBus, unless Adopt
// is set.
func (m *Transport) Script(plan transport.Plan) (string, error) {
	set, err := m.settings("")
	if err != nil {
		return "", err
	}
	d := ddl{&schema{Settings: set}}
	plan.Queues = slices.Clone(plan.Queues)
	for i := range plan.Queues {
		q := &plan.Queues[i]
		if err := d.checkScript(q.Name); err != nil {
			return "", err
		}
		q.Name = d.ShortName(q.Name)
	}
	for _, inbox := range plan.Inboxes {
		if err := d.checkScript(inbox); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	b.WriteString("SET XACT_ABORT, QUOTED_IDENTIFIER, ANSI_NULLS ON\nGO\n") // for the index with a condition
	steps := d.installation(plan)
	if m.Adopt {
		steps = slices.Concat(steps[:own], d.adoptionScript(plan), steps[own:])
	}
	for _, step := range steps {
		b.WriteString(step.statement + "\nGO\n")
	}
	return b.String(), nil
}

// checkScript is Check for a name in a script.
func (d *ddl) checkScript(name string) error {
	if err := d.Check(name); err != nil {
		return err
	}
	if strings.ContainsAny(name, "\r\n") || strings.Contains(name, "$(") {
		return fmt.Errorf("sqlserver: queue name %q has text that sqlcmd takes for a command: it cannot be in a script", name)
	}
	return nil
}

// The statements on the tables beside the queues. They belong to statements.go.

// createSchema returns the statement that creates a missing schema. CREATE SCHEMA has to be alone
// in its batch.
func createSchema(schema string) string {
	return `IF schema_id(` + literal(schema) + `) IS NULL EXEC (` + literal("CREATE SCHEMA "+bracket(schema)) + `);`
}

// versionStatements are the statements on the table of versions.
type versionStatements struct{ create, due string }

func newVersions(schema string) versionStatements {
	q := quote(schema, dialect.VersionTable)
	return versionStatements{
		create: `IF object_id(` + literal(q) + `, N'U') IS NULL
	CREATE TABLE ` + q + ` (
		name nvarchar(450) COLLATE Latin1_General_BIN2 PRIMARY KEY,
		version int NOT NULL,
		swept_at datetime2(7) NOT NULL DEFAULT sysutcdatetime());`,

		// The first process that marks a due queue sweeps it.
		due: declareNow + fmt.Sprintf(`UPDATE q SET swept_at = @now
OUTPUT inserted.name FROM %s AS q WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE q.swept_at <= dateadd(second, -%d, @now);`, q, int(tablequeue.SweepPause.Seconds())),
	}
}
