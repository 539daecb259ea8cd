package baddays_test

import (
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// troubles has the rows of "What Health says" in docs/bad-days.md.
func troubles() []trouble {
	var all []trouble
	for _, n := range networks {
		for _, tr := range onNetworks {
			tr.broker = n.broker
			tr.make = func(t *testing.T, p *patient) fault { return tr.on(p, n.behind(t)) }
			all = append(all, tr)
		}
	}
	return append(all,
		trouble{broker: "RabbitMQ", name: "The broker restarts", make: restartedRabbitMQ},
		trouble{
			broker: "RabbitMQ", name: "A message of the outbox is refused by its queue and by the error queue", make: refusedRow,
			reason: "their queue and the error queue have refused them",
		},
		trouble{broker: "PostgreSQL", name: "The broker is down", make: downPostgreSQL, reason: "receiving from"},
		trouble{broker: "PostgreSQL", name: "The database is read-only", make: readOnly, reason: "read-only"},
		trouble{broker: "PostgreSQL", name: "The server's clock is set back by an hour", make: steppedClock(-time.Hour)},
		trouble{broker: "PostgreSQL", name: "The server's clock is set forward by an hour", make: steppedClock(time.Hour)},
		trouble{broker: "SQLite", name: "Another process locks the file", make: lockedFile, reason: "locked"},
	)
}

// onNetworks are the troubles of all brokers that a network leads to.
var onNetworks = []trouble{
	{name: "Connections are refused", reason: "receiving from", on: func(_ *patient, n network) fault {
		return fault{n.broker, n.sound, n.proxy.Refuse, n.proxy.Resume}
	}},
	{name: "The network swallows packets", reason: "receiving from", on: func(_ *patient, n network) fault {
		return fault{n.broker, n.sound, n.proxy.Pause, n.proxy.Resume}
	}},
	{name: "The connection is reset once", on: func(_ *patient, n network) fault {
		return fault{n.broker, n.sound, n.proxy.Cut, nil}
	}},
	{name: "The broker answers after 2 s", on: func(_ *patient, n network) fault {
		return fault{n.broker, n.sound, func() { n.proxy.Delay(time.Second) }, n.proxy.Resume}
	}},
	{name: "The queue is deleted", reason: "no such queue", on: func(p *patient, n network) fault {
		remove := func(c transport.Conn) error { return c.(transport.Remover).Remove(p.ctx, p.queue) }
		return fault{n.broker, n.sound, func() { p.admin(remove) }, func() { must(p.t, p.endpoint.Install(p.ctx)) }}
	}},
}

// networks are the brokers behind a network, with the address of each.
var networks = []struct {
	broker string
	behind func(t *testing.T) network
}{
	{"RabbitMQ", func(t *testing.T) network {
		at := brokertest.RabbitMQ(t)
		return through(t, at, func(at string) transport.Transport { return &rabbitmq.Transport{URL: at} })
	}},
	{"PostgreSQL", func(t *testing.T) network {
		at := brokertest.Postgres(t)
		return through(t, at, func(at string) transport.Transport { return &postgres.Transport{URL: at} })
	}},
	{"Azure Service Bus", func(t *testing.T) network {
		ns := brokertest.OwnServiceBus(t)
		proxy := brokertest.NewProxy(t, hostOf(t, ns))
		return network{
			proxy:  proxy,
			broker: &asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin, Address: proxy.Addr()},
			sound:  &asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin},
		}
	}},
	{"Amazon SQS", func(t *testing.T) network {
		cfg := &aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")}
		return through(t, brokertest.SQS(t), func(at string) transport.Transport { return &sqs.Transport{Endpoint: at, Config: cfg} })
	}},
}

// A network leads to a broker: sound leads to the broker directly.
type network struct {
	proxy         *brokertest.Proxy
	broker, sound transport.Transport
}

func through(t *testing.T, at string, open func(at string) transport.Transport) network {
	u, err := url.Parse(at)
	must(t, err)
	proxy := brokertest.NewProxy(t, u.Host)
	return network{proxy, open(proxy.URL(t, at)), open(at)}
}

// hostOf returns the host of a connection string.
func hostOf(t *testing.T, ns *brokertest.ServiceBusNamespace) string {
	_, rest, _ := strings.Cut(ns.ConnectionString, "Endpoint=")
	text, _, _ := strings.Cut(rest, ";")
	u, err := url.Parse(text)
	must(t, err)
	return u.Host
}

// restartedRabbitMQ has the node's broker stop and start, as an upgrade does.
func restartedRabbitMQ(t *testing.T, _ *patient) fault {
	node := brokertest.OwnRabbitMQ(t)
	return fault{&rabbitmq.Transport{URL: node.URL}, nil, node.RestartApp, nil}
}

// refusedRow fills the error queue, and the queue of a message in the outbox.
func refusedRow(t *testing.T, p *patient) fault {
	at := brokertest.RabbitMQ(t)
	full := brokertest.Name(t, "full")
	ch := rabbitChannel(t, at)
	args := amqp.Table{"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
	for _, queue := range []string{full, p.errors} {
		_, err := ch.QueueDeclare(queue, true, false, false, false, args)
		must(t, err)
	}
	outbox := &postgres.Transport{URL: brokertest.Postgres(t)}
	p.changes = append(p.changes, func(cfg *endpoint.Config) {
		cfg.Outbox, cfg.OutboxRefusedFor = outbox, -1
	})
	begin := func() {
		for _, queue := range []string{full, p.errors} {
			fillUp(t, ch, queue)
		}
		must(t, p.endpoint.Send(p.ctx, order{1}, endpoint.To(full), endpoint.ViaOutbox()))
	}
	end := func() {
		for _, queue := range []string{full, p.errors} {
			_, err := ch.QueuePurge(queue, false)
			must(t, err)
		}
	}
	return fault{&rabbitmq.Transport{URL: at}, nil, begin, end}
}

// fillUp sends messages to a queue until the queue refuses a message.
func fillUp(t *testing.T, ch *amqp.Channel, queue string) {
	t.Helper()
	must(t, ch.Confirm(false))
	for range 100 {
		c, err := ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{Body: []byte("x")})
		must(t, err)
		if !c.Wait() {
			return
		}
	}
	t.Fatalf("queue %q refuses nothing", queue)
}

func downPostgreSQL(t *testing.T, _ *patient) fault {
	node := brokertest.OwnPostgres(t)
	return fault{&postgres.Transport{URL: node.URL}, nil, func() { node.Stop(os.Interrupt) }, node.Start}
}

// readOnly makes a database read-only for all sessions, as a failover to a standby does.
func readOnly(t *testing.T, p *patient) fault {
	at := brokertest.Postgres(t)
	set := func(to string) func() {
		return func() {
			db, err := pgx.Connect(p.ctx, at)
			must(t, err)
			defer db.Close(p.ctx)
			for _, statement := range []string{
				`SET default_transaction_read_only = off`,
				`ALTER DATABASE ` + pgx.Identifier{db.Config().Database}.Sanitize() + ` SET default_transaction_read_only = ` + to,
				`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`,
			} {
				_, err = db.Exec(p.ctx, statement)
				must(t, err)
			}
		}
	}
	return fault{&postgres.Transport{URL: at}, nil, set("on"), set("off")}
}

// steppedClock sets the clock of the server, and sets it right again.
func steppedClock(by time.Duration) func(*testing.T, *patient) fault {
	return func(t *testing.T, _ *patient) fault {
		node, clock := brokertest.ClockPostgres(t)
		broker := &postgres.Transport{URL: node.URL}
		return fault{broker, nil, func() { clock.Set(by) }, func() { clock.Set(0) }}
	}
}

// lockedFile holds a transaction that writes, as a program does that hangs in one, while a message
// is due.
func lockedFile(t *testing.T, p *patient) fault {
	path := filepath.Join(t.TempDir(), "queues.db")
	db, err := sql.Open("sqlite", path)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	exec := func(statement string) func() {
		return func() {
			_, err := db.ExecContext(p.ctx, statement)
			must(t, err)
		}
	}
	exec("PRAGMA busy_timeout = 60000")() // the endpoint writes too
	begin := func() {
		must(t, p.sendFromElsewhere(2, time.Second))
		exec("BEGIN IMMEDIATE")()
	}
	return fault{&sqlite.Transport{Path: path}, nil, begin, exec("ROLLBACK")}
}
