package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"
)

// databaseVar names the environment variable with the URL of the outbox's database.
const databaseVar = "HOLDFAST_OUTBOX"

// The endpoint appends these to its name for the queue of its outbox, and for the inbox with the
// ids of handled messages.
const (
	outboxSuffix = ".outbox"
	inboxSuffix  = ".handled"
)

// databaseFlag adds the flag of that name with the URL of the outbox's database.
func (a *app) databaseFlag(cmd *cobra.Command, name, usage string) {
	cmd.Flags().StringVar(&a.database, name, "", usage+"; $"+databaseVar+" unless set")
}

// databaseURL is what the flag or the environment say.
func (a *app) databaseURL() string { return cmp.Or(a.database, a.getenv(databaseVar)) }

// outbox returns the database of the outbox, or nil where the user named none.
func (a *app) outbox() (*target, error) {
	raw := a.databaseURL()
	if raw == "" {
		return nil, nil //nolint:nilnil // no outbox is no error
	}
	t, err := parseTransport(raw)
	if err != nil {
		return nil, usageError{fmt.Errorf("outbox: %w", err)}
	}
	if !t.isDatabase {
		return nil, usagef("outbox: %s is no database that handlers write to: use PostgreSQL, SQLite or SQL Server", t.name)
	}
	return &t, nil
}
