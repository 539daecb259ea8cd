package postgres

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// sessionSettings are the settings of the server that a URL may have as options, beside the options
// of pgx.
var sessionSettings = []string{
	"application_name", "client_encoding", "default_transaction_isolation", "idle_in_transaction_session_timeout",
	"lock_timeout", "options", "search_path", "statement_timeout", "timezone",
}

// ParseURL returns the transport of a URL such as
// postgres://user:password@host:5432/database?schema=app. The options schema, lease, max_tx, pooled
// and subscription_routing set the fields of those names. Further options are those of pgx, such as
// sslmode and pool_max_conns, and some settings of the server, such as statement_timeout; an
// unknown one is an error that names it. No error repeats the URL, which may hold a password.
func ParseURL(raw string) (*Transport, error) {
	t := &Transport{}
	own := dialect.Options{
		"schema": &t.Schema, "lease": &t.Lease, "max_tx": &t.MaxTx, "pooled": &t.Pooled,
		"subscription_routing": &t.SubscriptionRouting,
	}
	var err error
	if t.URL, err = own.ParseURL(raw, "postgres", "postgresql"); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	cfg, err := parse(t.URL)
	if err == nil {
		err = own.Check(maps.Keys(cfg.ConnConfig.RuntimeParams), sessionSettings, "those of pgx")
	}
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return t, nil
}

var errURL = errors.New("URL cannot be parsed (it is not shown, it may hold a password): " +
	"want postgres://user:password@host:5432/database, with special characters in the password percent-encoded")

func parse(url string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil || strings.LastIndexByte(cfg.ConnConfig.Host, '@') > 0 {
		return nil, errURL // err, or that host, may quote parts of the password
	}
	setDefault(cfg.ConnConfig.RuntimeParams, "client_encoding", "UTF8") // a role may have another
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	return cfg, nil
}

// connectTimeout limits an attempt to connect to a server that does not answer, if connect_timeout
// of the URL does not.
const connectTimeout = 5 * time.Second
