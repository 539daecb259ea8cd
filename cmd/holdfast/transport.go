package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
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
                              ?queue_type=classic, &topology=direct, &topic_exchange=name, &delivery_limit=n;
                              &delivery_limit=none: queues that NServiceBus may take over
  postgres://user:pw@host/db  PostgreSQL; ?schema=name instead of the schema public
  sb://keyname:key@host       Azure Service Bus; sb://host with the environment's credential; ?hierarchy=name
  sqs://region                Amazon SQS and SNS; sqs:// has region and credentials where the AWS tools look for them;
                              ?profile=name, ?endpoint=URL, ?queue_prefix=p, ?topic_prefix=p
  sqlserver://user:pw@host?database=db   SQL Server (not tried against one yet); &schema=name instead of dbo
`

// driver is a transport that URLs name by their scheme.
type driver struct {
	name  string // for people
	parse func(rawURL string) (transport.Transport, error)
	// listsNot says that the broker cannot list its queues.
	listsNot bool
	// isDatabase says that handlers can write in it: it may be the outbox of an endpoint on another
	// transport.
	isDatabase bool
	// maxName is the most bytes of a queue's name; 0 is no bound.
	maxName int
	// delays creates the parts of delays that Install takes for granted once one of them exists.
	// May be nil.
	delays func(context.Context, transport.Conn) error
}

// drivers are the transports by scheme.
var drivers = map[string]driver{
	"sqlite":     {name: "SQLite", parse: as(sqlite.ParseURL), isDatabase: true},
	"memory":     {name: "memory", parse: parseMemory, isDatabase: true},
	"amqp":       rabbitDriver,
	"amqps":      rabbitDriver,
	"postgres":   {name: "PostgreSQL", parse: as(postgres.ParseURL), isDatabase: true},
	"postgresql": {name: "PostgreSQL", parse: as(postgres.ParseURL), isDatabase: true},
	"sqlserver":  {name: "SQL Server", parse: as(sqlserver.ParseURL), isDatabase: true},
	"sqs":        {name: "Amazon SQS", parse: as(sqs.ParseURL)},
	"sb":         {name: "Azure Service Bus", parse: parseServiceBus},
	"endpoint=sb": { // as the portal shows it
		name: "Azure Service Bus", parse: func(raw string) (transport.Transport, error) {
			return &asb.Transport{ConnectionString: raw}, nil
		},
	},
}

var rabbitDriver = driver{
	name: "RabbitMQ", parse: parseRabbitMQ, listsNot: true, delays: rabbitmq.InstallDelays,
	maxName: 255 - len("to.queue.") - 2*28, // AMQP's bound, less the part that delays put before it
}

// as returns parse for the table.
func as[T transport.Transport](
	parse func(rawURL string) (T, error),
) func(rawURL string) (transport.Transport, error) {
	return func(rawURL string) (transport.Transport, error) { return parse(rawURL) }
}

// target is a transport that was named by its URL.
type target struct {
	transport.Transport
	driver
	scheme string // such as "sqlite"
}

// transportURL is what --transport or the environment say.
func (a *app) transportURL() string { return cmp.Or(a.transport, a.getenv(transportVar)) }

// target returns the transport that the user named.
func (a *app) target() (target, error) {
	if a.parsed != nil {
		return *a.parsed, nil
	}
	raw := a.transportURL()
	if raw == "" {
		return target{}, usagef("no transport: use --transport or set %s; it is one of:\n%s", transportVar, transportHelp)
	}
	t, err := parseTransport(raw)
	if err == nil {
		a.parsed = &t
	}
	return t, err
}

// with opens the transport and calls f with the connection, which has to be a T: else the error
// says that the transport cannot do that. A driver that creates queues creates them for the
// endpoint of that name.
func with[T any](ctx context.Context, a *app, endpoint, that string, f func(T) error) error {
	t, err := a.target()
	if err != nil {
		return err
	}
	return withTarget(ctx, a, t, endpoint, that, f)
}

// withTarget is with for a transport that the caller has asked for.
func withTarget[T any](
	ctx context.Context, a *app, t target, endpoint, that string, f func(T) error,
) (err error) {
	if t.scheme == "memory" {
		return usagef("memory: lives in one process only: use it with demo and bench")
	}
	env := transport.Env{Logger: a.log, Endpoint: endpoint, Instance: fmt.Sprintf("%s-%d", machineName(), os.Getpid())}
	conn, err := t.Open(ctx, env)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	able, ok := conn.(T)
	if !ok {
		return fmt.Errorf("the transport cannot %s", that)
	}
	return f(able)
}

// only refuses transports of other schemes, for the commands of one broker.
func (a *app) only(command string, schemes ...string) error {
	t, err := a.target()
	if err == nil && !slices.Contains(schemes, t.scheme) {
		err = usagef("%s: the transport is %s: give one with %s://", command, t.name, strings.Join(schemes, ":// or "))
	}
	return err
}

// parseTransport returns the transport of a URL. Its errors show no password.
func parseTransport(raw string) (target, error) {
	scheme, _, _ := strings.Cut(raw, ":")
	scheme = strings.ToLower(scheme)
	d, ok := drivers[scheme]
	if !ok || scheme == raw {
		return target{}, usagef("transport: unknown scheme %q; it is one of:\n%s", scheme, transportHelp)
	}
	t, err := d.parse(raw)
	if err != nil {
		return target{}, usagef("transport: %w", err)
	}
	return target{t, d, scheme}, nil
}

// setLease sets the lease of a transport that has one.
func setLease(t transport.Transport, d time.Duration) {
	switch t := t.(type) {
	case *sqlite.Transport:
		t.Lease = d
	case *postgres.Transport:
		t.Lease = d
	case *sqlserver.Transport:
		t.Lease = d
	case *sqs.Transport:
		t.Lease = d
	case *asb.Transport:
		t.LockDuration = d
	}
}

// openTransactions lets the handlers of that concurrency have a transaction each.
func openTransactions(t transport.Transport, concurrency int) {
	switch t := t.(type) {
	case *postgres.Transport:
		t.MaxTx = concurrency
	case *sqlserver.Transport:
		t.MaxTx = concurrency
	}
}

// adopt lets the installer of a transport take over tables that NServiceBus has created.
func (t target) adopt() error {
	switch own := t.Transport.(type) {
	case *postgres.Transport:
		own.Adopt = true
	case *sqlserver.Transport:
		own.Adopt = true
	default:
		return usagef("--adopt: %s needs none: an endpoint of NServiceBus and one of this program may receive from the same queue", t.name)
	}
	return nil
}

// file returns the path of an SQLite file; "" for other transports.
func file(t transport.Transport) string {
	if t, ok := t.(*sqlite.Transport); ok {
		return t.Path
	}
	return ""
}

func parseMemory(raw string) (transport.Transport, error) {
	if _, rest, _ := strings.Cut(raw, ":"); rest != "" {
		return nil, errors.New("memory: takes nothing after the colon")
	}
	return &inmemory.Transport{}, nil
}

// parseServiceBus takes the credential of the environment for a URL without a key: that of a
// service principal, a workload, a managed identity or the Azure CLI.
func parseServiceBus(raw string) (transport.Transport, error) {
	t, err := asb.ParseURL(raw)
	if err == nil && t.Namespace != "" {
		t.Credential, err = azidentity.NewDefaultAzureCredential(nil)
	}
	return t, err
}

func parseRabbitMQ(raw string) (transport.Transport, error) {
	t, err := rabbitmq.ParseURL(raw)
	if err == nil {
		t.ConnectionName = programName
	}
	return t, err
}

// queuePlan is the plan of queues without more.
func queuePlan(names ...string) (plan transport.Plan) {
	for _, name := range names {
		plan.Queues = append(plan.Queues, transport.Queue{Name: name})
	}
	return plan
}

func machineName() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}
