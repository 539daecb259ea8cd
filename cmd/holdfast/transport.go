package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/bench"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/sqlite"
	"github.com/holdfast-go/holdfast/transport/sqlserver"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// transportVar names the environment variable with the URL of the transport.
const transportVar = "HOLDFAST_TRANSPORT"

// programName is what connections and messages of this program carry as their endpoint.
const programName = "holdfast"

const transportHelp = `
  sqlite:orders.db            queues in a file, relative or absolute (sqlite:/var/lib/orders.db)
  memory:                     queues in this process only, for demo and bench
  amqp://user:pw@host/vhost   RabbitMQ; amqps:// with TLS (&cacertfile=, &certfile=, &keyfile=);
                              ?queue_type=classic, &topology=direct, &topic_exchange=name, &delivery_limit=n
  postgres://user:pw@host/db  PostgreSQL; ?schema=name instead of the schema public
  sb://keyname:key@host       Azure Service Bus; sb://host with the environment's credential; ?hierarchy=name
  sqs://region                Amazon SQS and SNS; sqs:// has region and credentials where the AWS tools look for them;
                              ?profile=name, ?endpoint=URL, ?queue_prefix=p, ?topic_prefix=p
  sqlserver://user:pw@host?database=db   SQL Server (not tried against one yet); &schema=name instead of dbo
`

// target is a transport that was named by its URL.
type target struct {
	transport.Transport
	scheme string // such as "sqlite"
	broker string // its name for people
	path   string // of the file, sqlite only
	lists  bool   // it can list its queues

	// bench is what a benchmark of that concurrency needs of the broker.
	bench func(concurrency int) bench.Broker

	lease *time.Duration // of Transport; nil where it has none
	rows  torture.Rows   // nil where handlers cannot write in the transaction of a message
}

// schemes are the transports by the scheme of their URL.
var schemes = map[string]func(rawURL string) (target, error){
	"sqlite":      sqliteTarget,
	"memory":      memoryTarget,
	"amqp":        rabbitTarget,
	"amqps":       rabbitTarget,
	"postgres":    postgresTarget,
	"postgresql":  postgresTarget,
	"sqlserver":   mssqlTarget,
	"sqs":         sqsTarget,
	"sb":          asbTarget,
	"endpoint=sb": connectionString, // of Azure Service Bus, as the portal shows it
}

// transportURL is what --transport or the environment say.
func (a *app) transportURL() string {
	if a.transport != "" {
		return a.transport
	}
	return os.Getenv(transportVar)
}

// target is the transport that the user named.
func (a *app) target() (target, error) {
	raw := a.transportURL()
	if raw == "" {
		return target{}, usagef("no transport: use --transport or set %s; it is one of:\n%s", transportVar, transportHelp)
	}
	return parseTransport(raw)
}

// connect opens the transport for a command that looks at a broker from outside.
func (a *app) connect(ctx context.Context) (transport.Conn, error) {
	return a.connectAs(ctx, programName)
}

// connectAs is connect for one that creates queues: some drivers create them for the endpoint of that name.
func (a *app) connectAs(ctx context.Context, endpoint string) (transport.Conn, error) {
	t, err := a.target()
	if err != nil {
		return nil, err
	}
	if t.scheme == "memory" {
		return nil, usagef("memory: lives in one process only: use it with demo and bench")
	}
	return a.open(ctx, t, endpoint)
}

func (a *app) open(ctx context.Context, t target, endpoint string) (transport.Conn, error) {
	env := transport.Env{Logger: a.log, Endpoint: endpoint, Instance: fmt.Sprintf("%s-%d", machineName(), os.Getpid())}
	conn, err := t.Open(ctx, env)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// parseTransport finds the transport of a URL. Its errors show no password.
func parseTransport(raw string) (target, error) {
	scheme, _, ok := strings.Cut(raw, ":")
	parse := schemes[strings.ToLower(scheme)]
	if !ok || parse == nil {
		return target{}, usagef("transport %q: unknown scheme; it is one of:\n%s", redact(raw, raw), transportHelp)
	}
	t, err := parse(raw)
	if err != nil {
		return target{}, usagef("transport %q: %w", redact(raw, raw), err)
	}
	t.scheme = strings.ToLower(scheme)
	return t, nil
}

func memoryTarget(raw string) (target, error) {
	if _, rest, _ := strings.Cut(raw, ":"); rest != "" {
		return target{}, errors.New("memory: takes nothing after the colon")
	}
	return target{
		Transport: &inmemory.Transport{}, broker: "memory", lists: true,
		bench: func(int) bench.Broker { return bench.Memory() },
	}, nil
}

func sqliteTarget(raw string) (target, error) {
	_, path, _ := strings.Cut(raw, ":")
	path = strings.TrimPrefix(path, "//") // sqlite:///absolute and sqlite://relative are common too
	if path == "" {
		return target{}, errors.New("no file, as in sqlite:orders.db")
	}
	t := &sqlite.Transport{Path: path}
	return target{
		Transport: t, broker: "SQLite", path: path, lists: true,
		bench: func(int) bench.Broker { return bench.SQLite(path) },
		lease: &t.Lease, rows: torture.SQLiteRows(path),
	}, nil
}

func postgresTarget(raw string) (target, error) {
	u, err := parseURL(raw)
	if err != nil {
		return target{}, err
	}
	schema := takeOption(u, "schema")
	t := &postgres.Transport{URL: u.String(), Schema: schema}
	return target{
		Transport: t, broker: "PostgreSQL", lists: true,
		bench: func(concurrency int) bench.Broker {
			t.MaxTx = concurrency // each handler has its transaction
			return bench.Postgres(t.URL, schema)
		},
		lease: &t.Lease, rows: torture.PostgresRows(t.URL, schema),
	}, nil
}

func mssqlTarget(raw string) (target, error) {
	u, err := parseURL(raw)
	if err != nil {
		return target{}, err
	}
	schema := takeOption(u, "schema")
	t := &sqlserver.Transport{URL: u.String(), Schema: schema}
	return target{
		Transport: t, broker: "SQL Server", lists: true,
		bench: func(concurrency int) bench.Broker {
			t.MaxTx = concurrency
			return bench.MSSQL(t.URL, schema)
		},
		lease: &t.Lease,
	}, nil
}

func sqsTarget(raw string) (target, error) {
	t, err := sqs.ParseURL(raw)
	if err != nil {
		return target{}, err
	}
	return target{
		Transport: t, broker: "Amazon SQS", lists: true,
		bench: func(int) bench.Broker { return bench.SQS(t) },
		lease: &t.Lease,
	}, nil
}

// parseURL is url.Parse without the URL in its error, which may hold a password.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("not a valid URL (special characters in user and password are to be percent-encoded)")
	}
	if u.Host == "" {
		return nil, errors.New("no host")
	}
	return u, nil
}

// takeOption removes an option from the query of u and returns its value.
func takeOption(u *url.URL, name string) string {
	q := u.Query()
	value := q.Get(name)
	q.Del(name)
	u.RawQuery = q.Encode()
	return value
}

// createQueues creates queues that are missing.
func createQueues(ctx context.Context, conn transport.Conn, names ...string) error {
	installer, ok := conn.(transport.Installer)
	if !ok {
		return errors.New("the transport cannot create queues")
	}
	var plan transport.Plan
	for _, name := range names {
		plan.Queues = append(plan.Queues, transport.Queue{Name: name})
	}
	return installer.Install(ctx, plan)
}

func machineName() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}
