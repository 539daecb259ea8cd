package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

const sqlScriptHelp = `Print the SQL that creates queues on PostgreSQL, or updates tables of an earlier version, for databases whose
changes are reviewed. It is one transaction, except with --adopt; run again it changes nothing, and no messages are
lost. The command does not connect: of the transport's URL only ?schema=name counts. With sqlserver://… it prints batches of sqlcmd for SQL Server,
on which they have not been tested.

The user of the endpoints then needs USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE on its tables. Their
Config.Install may stay off.`

// sqlCommands are the commands that print SQL.
type sqlCommands struct{ *app }

func (a *sqlCommands) sqlCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "sql",
		Short: "Print the SQL that creates queues on PostgreSQL and SQL Server",
	}, a.sqlScriptCommand())
}

func (a *sqlCommands) sqlScriptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "script [QUEUE]...",
		Short: "Print the SQL that creates queues, or brings them up to date",
		Long:  sqlScriptHelp,
		Example: `  holdfast sql script --endpoint sales --endpoint billing --shared error --shared audit > queues.sql
  holdfast sql script --outbox billing                      # for an endpoint that has its queues at another broker
  psql --set ON_ERROR_STOP=1 --file queues.sql "$DATABASE"
  holdfast sql script sales --transport 'postgres://db.internal/shop?schema=messaging'`,
	}
	adopt := cmd.Flags().Bool("adopt", false, "take over tables that NServiceBus has created; see holdfast endpoint create --help")
	shared := cmd.Flags().StringArray("shared", nil, "`name` of a queue that other systems read, such as the error or audit queue; may be repeated")
	endpoints := cmd.Flags().StringArray("endpoint", nil, "`name` of an endpoint: its queue and its quarantine; may be repeated")
	outboxes := cmd.Flags().StringArray("outbox", nil, "`name` of an endpoint whose outbox is in the database: its outbox and its inbox; may be repeated")
	inboxes := cmd.Flags().StringArray("inbox", nil, "`name` of an endpoint with an inbox and no outbox; may be repeated")
	cmd.RunE = func(_ *cobra.Command, queues []string) error {
		plan := scriptPlan(*endpoints, *shared, queues)
		for _, e := range *outboxes {
			of := outboxPlan(e, true)
			plan.Queues, plan.Inboxes = append(plan.Queues, of.Queues...), append(plan.Inboxes, of.Inboxes...)
		}
		for _, e := range *inboxes {
			plan.Inboxes = append(plan.Inboxes, e+inboxSuffix)
		}
		return a.sqlScript(plan, *adopt)
	}
	return cmd
}

// scriptPlan returns the plan of the queues that the arguments name.
func scriptPlan(endpoints, shared, queues []string) transport.Plan {
	var names []string
	for _, e := range endpoints {
		names = append(names, e, e+".quarantine")
	}
	plan := queuePlan(append(names, queues...)...)
	for _, name := range shared {
		plan.Queues = append(plan.Queues, transport.Queue{Name: name, Shared: true})
	}
	return plan
}

// scripted is a transport that can print its installer.
type scripted interface {
	Script(plan transport.Plan) (string, error)
}

func (a *sqlCommands) sqlScript(plan transport.Plan, adopt bool) error {
	var made scripted = &postgres.Transport{Adopt: adopt}
	if a.transportURL() != "" {
		t, err := a.target()
		if err == nil && adopt {
			err = t.adopt()
		}
		if err != nil {
			return err
		}
		var ok bool
		if made, ok = t.Transport.(scripted); !ok {
			return usagef("sql script: %s has no tables of queues: want postgres://… or sqlserver://…", t.name)
		}
	}
	if len(plan.Queues)+len(plan.Inboxes) == 0 {
		return usagef("sql script: name queues, or endpoints with --endpoint, --outbox or --inbox")
	}
	text, err := made.Script(plan)
	if err != nil {
		return usagef("sql script: %w", err)
	}
	fmt.Fprint(a.out, text)
	return nil
}
