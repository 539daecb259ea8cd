// Package dialect has the parts that the SQL dialects of the lease engine share: the names of their
// tables, their bounds, and the errors and helpers for queue tables that another system has
// created.
package dialect

import (
	"cmp"
	"fmt"
	"time"
)

// The names of the tables beside the queues.
const (
	SubscriptionTable = "holdfast_subscriptions"
	VersionTable      = "holdfast_tables"
	InboxTable        = "holdfast_handled"
	RecordTable       = "holdfast_state"
)

const (
	// LockWait is the time in milliseconds that a write waits for a lock. Only a session that
	// alters or rewrites a table holds a lock for longer.
	LockWait = "100"
	// LongLockWait is the time that a write by itself waits for a lock.
	LongLockWait = time.Second
	// MaxSavepoint bounds the end of a savepoint whose caller no longer waits.
	MaxSavepoint = 5 * time.Second

	defaultMaxTx = 32
)

// Settings are the part of a transport's configuration that both dialects have.
type Settings struct {
	Schema   string
	MaxTx    int
	Endpoint string
	Routing  string // table of subscriptions of NServiceBus's shape; "" is the driver's own
}

// Complete returns s with defaults, or an error that begins with the driver's name. schema is the
// default schema, and checkName checks an identifier.
func (s Settings) Complete(driver string, lease time.Duration, schema string,
	checkName func(what, name string) error,
) (Settings, error) {
	if lease < 0 || s.MaxTx < 0 {
		return s, fmt.Errorf("%s: Lease %v and MaxTx %d may not be negative", driver, lease, s.MaxTx)
	}
	s.Schema, s.MaxTx = cmp.Or(s.Schema, schema), cmp.Or(s.MaxTx, defaultMaxTx)
	err := checkName("schema", s.Schema)
	if err == nil && s.Routing != "" {
		err = checkName("table", s.Routing)
	}
	return s, err
}
