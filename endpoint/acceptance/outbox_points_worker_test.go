package acceptance_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// A worker process that ends itself at one point of the outbox. Its transport, its outbox and the
// connections of its database are wrapped, so that the product has no part in that.

const (
	pointVariable = "HOLDFAST_POINT_WORKER" // broker, database, point and occurrence of a worker process

	// endedItself is the exit code of a process that has reached its point.
	endedItself = 42
	// pointOldKeys is how many old keys are in the inbox before a process removes them, and
	// pointChunk how many one transaction removes.
	pointOldKeys = 12_000
	pointChunk   = 5000
)

// point is a place in the work of an endpoint with an outbox.
type point int

const (
	nowhere point = iota
	beforeLookUp
	afterLookUp
	afterFirstWrite
	beforeCommit
	commitSent
	afterCommit
	afterAcknowledgement
	afterClaim
	afterFirstOperation
	afterDispatch
	betweenChunks
)

// ending ends the process at the n-th occurrence of a point.
type ending struct {
	point point
	n     int64
	seen  atomic.Int64
}

// due reports whether this occurrence of p is the one at which the process ends.
func (e *ending) due(p point) bool { return p == e.point && e.seen.Add(1) == e.n }

// at ends the process when this occurrence of p is the n-th.
func (e *ending) at(p point) {
	if e.due(p) {
		e.now()
	}
}

// now ends the process as a kill does: without a deferred call, and without the pause of os.Exit
// under -race.
func (*ending) now() { syscall.Exit(endedItself) }

// pointWorker runs the endpoint until it ends at its point, or its standard input ends. It writes a
// line when it is ready.
func pointWorker() error {
	var broker, database string
	end := &ending{}
	if _, err := fmt.Sscan(os.Getenv(pointVariable), &broker, &database, &end.point, &end.n); err != nil {
		return err
	}
	queues, err := openKillStore(broker, os.Getenv(placeVariable))
	if err != nil {
		return err
	}
	defer queues.Close()
	rows, err := openKillStore(database, os.Getenv(storeVariable))
	if err != nil {
		return err
	}
	defer rows.Close()
	cfg := pointConfig(end, queues.transport(), rows)
	if cfg.Outbox, err = end.database(rows); err != nil {
		return err
	}
	if end.point != nowhere {
		cfg.Outbox = wrapped{cfg.Outbox, end.outbox}
		cfg.Transport = wrapped{cfg.Transport, end.broker}
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	go func() {
		if e.WaitReady(ctx) == nil {
			fmt.Println("ready")
		}
	}()
	if end.point == betweenChunks {
		go end.watchKeys(ctx, rows)
	}
	return e.Run(ctx)
}

// pointConfig is the endpoint of the workers, without its outbox. For each message it writes a row
// and sends two messages.
func pointConfig(end *ending, broker transport.Transport, rows killStore) endpoint.Config {
	cfg := endpoint.Config{
		Name: "work", Transport: broker, Concurrency: 8, Install: true,
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work"), endpoint.Command[worked]("Kill.Worked").To("worked")},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
			if err := rows.write(ctx, s, m.N); err != nil {
				return err
			}
			if err := end.afterWrite(ctx, s, rows); err != nil {
				return err
			}
			return errors.Join(s.Send(ctx, worked{2 * m.N}), s.Send(ctx, worked{2*m.N + 1}))
		})},
	}
	cfg.Pipeline.Dispatch = onDispatch(func(next func() error) error {
		end.at(beforeCommit)
		return next()
	})
	return cfg
}

// afterWrite is reached when the handler's first statement was executed: on SQLite that is at the
// commit.
func (e *ending) afterWrite(ctx context.Context, s *endpoint.Session, rows killStore) error {
	if _, ok := rows.(*sqliteKills); ok {
		return sqlite.OnCommit(ctx, s, func(context.Context, *sql.Tx) error { e.at(afterFirstWrite); return nil })
	}
	e.at(afterFirstWrite)
	return nil
}

// database returns the transport of the outbox. That on PostgreSQL has connections which end the
// process when a commit is sent.
func (e *ending) database(rows killStore) (transport.Transport, error) {
	store, ok := rows.(*postgresKills)
	if !ok || e.point != commitSent {
		return rows.transport(), nil
	}
	cfg, err := pgxpool.ParseConfig(store.url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 12
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // each request has the text of its statements
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		return &commitConn{c, e}, err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	return &postgres.Transport{Pool: pool, Lease: killLease}, err
}

// commitConn is a connection to PostgreSQL that ends the process when the commit of a handler has
// been written.
type commitConn struct {
	net.Conn
	end *ending
}

func (c *commitConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil && bytes.Contains(b, []byte("commit\x00")) && bytes.Contains(b, []byte(`"work.handled"`)) {
		c.end.at(commitSent)
	}
	return n, err
}

// watchKeys ends the process when n chunks of the old keys have been removed, and others have not.
func (e *ending) watchKeys(ctx context.Context, rows killStore) {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		left, err := oldKeys(ctx, rows)
		switch {
		case err != nil:
			fmt.Fprintln(os.Stderr, "count the old keys:", err)
		case left == 0:
			fmt.Fprintln(os.Stderr, "all old keys are removed, and the process has not ended itself")
			return
		case left <= pointOldKeys-int(e.n)*pointChunk:
			e.now()
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// oldKeys returns the number of keys in the inbox that are old enough to be removed.
func oldKeys(ctx context.Context, rows killStore) (n int, err error) {
	switch store := rows.(type) {
	case *postgresKills:
		err = store.pool.QueryRow(ctx, `SELECT count(*) FROM "work.handled" WHERE at < now() - interval '7 days'`).Scan(&n)
	case *sqliteKills:
		err = store.db.QueryRowContext(ctx, `SELECT count(*) FROM holdfast_handled WHERE at < unixepoch('now', '-7 days') * 1000000`).Scan(&n)
	default:
		err = errors.ErrUnsupported
	}
	return n, err
}

// wrapped is a transport whose connections are wrapped.
type wrapped struct {
	transport.Transport
	wrap func(transport.Conn) transport.Conn
}

func (w wrapped) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := w.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return w.wrap(conn), nil
}

// outboxConn is a connection to the database of the outbox.
type outboxConn struct {
	transport.Conn
	transport.OutboxStore
	transport.Installer
	transport.Inspector
	end *ending
}

func (e *ending) outbox(conn transport.Conn) transport.Conn {
	return &outboxConn{conn, conn.(transport.OutboxStore), conn.(transport.Installer), conn.(transport.Inspector), e}
}

func (c *outboxConn) FindHandled(ctx context.Context, inbox string, keys []transport.HandledKey) ([]transport.HandledState, error) {
	if keys[0] == (transport.HandledKey{}) { // the endpoint looks whether the database answers
		return c.OutboxStore.FindHandled(ctx, inbox, keys)
	}
	c.end.at(beforeLookUp)
	states, err := c.OutboxStore.FindHandled(ctx, inbox, keys)
	if err == nil {
		c.end.at(afterLookUp)
	}
	return states, err
}

func (c *outboxConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	r, err := c.Conn.OpenReceiver(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &outboxReceiver{r, r.(transport.Renewer), r.(transport.ByteReceiver), c.end}, nil
}

// outboxReceiver is the relay's receiver.
type outboxReceiver struct {
	transport.Receiver
	transport.Renewer
	transport.ByteReceiver
	end *ending
}

func (r *outboxReceiver) ReceiveBytes(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	ds, err := r.ByteReceiver.ReceiveBytes(ctx, limit, maxBytes)
	if len(ds) > 0 {
		r.end.at(afterClaim)
	}
	return ds, err
}

// brokerConn is a connection to the broker.
type brokerConn struct {
	transport.Conn
	transport.Installer
	transport.Inspector
	end *ending
}

// addressedConn is one to a broker whose queues have addresses.
type addressedConn struct {
	*brokerConn
	transport.Addresser
}

func (e *ending) broker(conn transport.Conn) transport.Conn {
	c := &brokerConn{conn, conn.(transport.Installer), conn.(transport.Inspector), e}
	if addresser, ok := conn.(transport.Addresser); ok {
		return addressedConn{c, addresser}
	}
	return c
}

// Dispatch is called by the relay alone, as no message fails.
func (c *brokerConn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	if len(ops) > 1 && c.end.due(afterFirstOperation) {
		if _, err := c.Conn.Dispatch(ctx, ops[:1]); err != nil {
			return nil, err
		}
		c.end.now()
	}
	receipts, err := c.Conn.Dispatch(ctx, ops)
	if err == nil {
		c.end.at(afterDispatch)
	}
	return receipts, err
}

func (c *brokerConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	r, err := c.Conn.OpenReceiver(ctx, opts)
	if err != nil || opts.Queue != "work" {
		return r, err
	}
	return &brokerReceiver{r, c.end}, nil
}

// brokerReceiver receives from the queue of the endpoint.
type brokerReceiver struct {
	transport.Receiver
	end *ending
}

func (r *brokerReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, limit)
	for i, d := range ds {
		ds[i] = &brokerDelivery{d, r.end}
	}
	return ds, err
}

// Renew is called for brokers with leases.
func (r *brokerReceiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	inner := make([]transport.Delivery, len(ds))
	for i, d := range ds {
		inner[i] = d.(*brokerDelivery).Delivery
	}
	return r.Receiver.(transport.Renewer).Renew(ctx, inner)
}

type brokerDelivery struct {
	transport.Delivery
	end *ending
}

func (d *brokerDelivery) Complete(ctx context.Context) error {
	d.end.at(afterCommit)
	err := d.Delivery.Complete(ctx)
	if err == nil {
		d.end.at(afterAcknowledgement)
	}
	return err
}
