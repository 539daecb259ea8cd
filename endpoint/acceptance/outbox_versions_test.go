package acceptance_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Statements that make an outbox on PostgreSQL as programs of an earlier or a later version have
// it.
const (
	outboxOf3 = `ALTER TABLE "sales.outbox" DROP COLUMN IF EXISTS name;
		UPDATE holdfast_tables SET version = 3 WHERE name = 'sales.outbox'`
	outboxOf2 = outboxOf3 + `;
		ALTER TABLE "sales.outbox" ALTER COLUMN id DROP DEFAULT;
		ALTER TABLE "sales.outbox" ALTER COLUMN id TYPE text;
		ALTER TABLE "sales.outbox" ALTER COLUMN id SET DEFAULT gen_random_uuid()::text;
		UPDATE holdfast_tables SET version = 2 WHERE name = 'sales.outbox'`
	outboxOf1 = outboxOf2 + `;
		ALTER TABLE "sales.outbox" DROP COLUMN expires;
		ALTER TABLE "sales.outbox" ADD COLUMN expires_at timestamptz, ADD COLUMN solo_count integer NOT NULL DEFAULT 0;
		DELETE FROM holdfast_tables WHERE name = 'sales.outbox'`
	laterOutbox = `ALTER TABLE "sales.outbox" ADD COLUMN later int;
		UPDATE holdfast_tables SET version = 99 WHERE name = 'sales.outbox'`

	inboxInPart = `DELETE FROM holdfast_handled WHERE name = 'sales.handled'`
	laterInbox  = `ALTER TABLE "sales.handled" ADD COLUMN later int;
		UPDATE holdfast_handled SET version = 99 WHERE name = 'sales.handled'`
)

// leftIn starts an endpoint, and stops it with rows left in its outbox.
func leftIn(t *testing.T, messages int) *troubled {
	t.Helper()
	url := brokertest.Postgres(t)
	var away atomic.Bool
	away.Store(true)
	h := troubledAt(t, url, url, func(cfg *endpoint.Config) {
		cfg.StopTimeout = 100 * time.Millisecond
		cfg.Transport.(*inmemory.Transport).Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "shipping" && away.Load() {
				return transport.ErrUnreachable
			}
			return nil
		}
	})
	h.send(messages)
	h.await("all messages are handled", func() bool {
		stored := 0
		must(t, h.sql.QueryRow(t.Context(), `SELECT count(*) FROM "sales.outbox"`).Scan(&stored))
		return stored == 2*h.sent
	})
	h.e.end()
	away.Store(false)
	return h
}

// refused checks that the endpoint does not start, and says why.
func refused(t *testing.T, cfg endpoint.Config, wants ...string) {
	t.Helper()
	e, err := endpoint.New(cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if e.WaitReady(ctx) == nil {
		cancel()
	}
	err = <-ended
	for _, want := range wants {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("install %t: error %v, want one that says %q", cfg.Install, err, want)
		}
	}
}

// Tables of an earlier version are used as they are where that can be. Others the installer adds
// to, and without it the endpoint does not start. No stored message is lost.
func TestTablesOfAnOutboxOfAnEarlierVersion(t *testing.T) {
	for name, c := range map[string]struct {
		earlier string
		refused string // without the installer
	}{
		"version 3":                        {outboxOf3, ""},
		"version 2":                        {outboxOf2, ""},
		"version 1":                        {outboxOf1, `queue "sales.outbox": its table is of an earlier version: run the installer`},
		"an inbox that is there in part":   {inboxInPart, `inbox "sales.handled": no such queue: create it with Config.Install`},
		"no inbox, as without one so far":  {`DROP TABLE "sales.handled"; ` + inboxInPart, `inbox "sales.handled": no such queue: create it with`},
		"no table of the inboxes' version": {`DROP TABLE holdfast_handled`, `inbox "sales.handled": no such queue: create it with`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := leftIn(t, 3)
			h.exec(c.earlier)
			h.cfg.Install = false
			if c.refused != "" {
				refused(t, h.cfg, c.refused)
				h.cfg.Install = true
			}
			for range 2 { // with the installer too
				h.e = start(t, h.cfg)
				h.send(3)
				h.arrived()
				h.e.end()
				h.cfg.Install = true
			}
		})
	}
}

// An endpoint refuses to start on tables of a later version, with the installer or without. One
// that runs while another program adds to the tables goes on.
func TestTablesOfAnOutboxOfALaterVersion(t *testing.T) {
	for name, c := range map[string]struct{ later, refused string }{
		"the outbox": {laterOutbox, "its table is of version 99, this program knows those up to"},
		"the inbox":  {laterInbox, "of version 99, this program knows version 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := brokertest.Postgres(t)
			h := troubledAt(t, url, url, nil)
			h.send(3)
			h.arrived()
			h.exec(c.later)
			h.send(3)
			h.arrived()
			for _, h.cfg.Install = range []bool{true, false} {
				refused(t, h.cfg, c.refused, "update this program")
			}
			h.send(3)
			h.arrived()
		})
	}
}

// The tables of a running endpoint become those of another version: no message fails, none is lost,
// none is doubled.
func TestTablesOfAnOutboxThatChangeTheirVersionUnderIt(t *testing.T) {
	t.Parallel()
	url := brokertest.Postgres(t)
	h := troubledAt(t, url, url, nil)
	h.send(3)
	h.arrived()
	for _, change := range []string{
		outboxOf2,
		`ALTER TABLE "sales.outbox" ADD COLUMN later int`,
		`ALTER TABLE "sales.outbox" ALTER COLUMN id DROP DEFAULT; ALTER TABLE "sales.outbox" ALTER COLUMN id TYPE uuid USING id::uuid;
			ALTER TABLE "sales.outbox" ALTER COLUMN id SET DEFAULT gen_random_uuid();
			UPDATE holdfast_tables SET version = 3 WHERE name = 'sales.outbox'`,
		`ALTER TABLE "sales.outbox" DROP COLUMN later`,
		`ALTER TABLE "sales.handled" ADD COLUMN later int`,
		`ALTER TABLE "sales.handled" DROP COLUMN later`,
	} {
		h.send(20)
		h.exec(change)
		h.send(20)
		h.arrived()
	}
}

// sqliteOutbox is an endpoint whose outbox is a file.
type sqliteOutbox struct {
	t      *testing.T
	db     *sql.DB
	broker *inmemory.Transport
	cfg    endpoint.Config
	sent   int
}

func newSQLiteOutbox(t *testing.T) *sqliteOutbox {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_busy_timeout=20000")
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	w := &sqliteOutbox{t: t, db: db, broker: &inmemory.Transport{}}
	w.broker.CreateQueues("shipping")
	w.exec("create table orders (id text)")
	w.cfg = sales(w.broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
		err := sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "insert into orders values (?)", o.ID)
			return err
		})
		if err != nil {
			return err
		}
		return s.Send(ctx, shipOrder(o))
	}))
	w.cfg.Outbox = &sqlite.Transport{Path: path}
	w.cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
	return w
}

func (w *sqliteOutbox) exec(statements string) {
	w.t.Helper()
	_, err := w.db.ExecContext(w.t.Context(), statements)
	must(w.t, err)
}

// handled sends messages, and waits until what they write and send is there, each once.
func (w *sqliteOutbox) handled(e *running, messages int) {
	w.t.Helper()
	for range messages {
		w.sent++
		e.send(placeOrder{fmt.Sprint(w.sent)})
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(timeLimit)
	for len(w.broker.Messages("shipping")) < w.sent {
		select {
		case <-tick.C:
		case <-late:
			w.t.Fatalf("%d of %d messages have arrived, %d failed", len(w.broker.Messages("shipping")), w.sent, len(w.broker.Messages("error")))
		}
	}
	var rows int
	must(w.t, w.db.QueryRowContext(w.t.Context(), "select count(*) from orders").Scan(&rows))
	if sent, failed := len(w.broker.Messages("shipping")), len(w.broker.Messages("error")); rows != w.sent || sent != w.sent || failed > 0 {
		w.t.Errorf("%d rows, %d sent, %d failed, want %d and none", rows, sent, failed, w.sent)
	}
}

// A file that a program before inboxes has written gets their tables when it is opened. The
// endpoint's own inbox is the installer's to create.
func TestAFileOfAnEarlierVersionGetsTheTablesOfInboxes(t *testing.T) {
	t.Parallel()
	w := newSQLiteOutbox(t)
	e := start(t, w.cfg)
	w.handled(e, 3)
	e.end()
	w.exec(`drop table holdfast_handled; drop table holdfast_inboxes`)
	w.cfg.Install = false
	refused(t, w.cfg, `inbox "sales.handled": no such queue: create it with Config.Install`)
	w.cfg.Install = true
	for range 2 {
		e = start(t, w.cfg)
		w.handled(e, 3)
		e.end()
		w.cfg.Install = false
	}
}

// An endpoint refuses to start on a file of a later version, with the installer or without. One
// that runs while another program adds to the file goes on.
func TestAFileOfALaterVersion(t *testing.T) {
	t.Parallel()
	w := newSQLiteOutbox(t)
	e := start(t, w.cfg)
	w.handled(e, 3)
	w.exec(`alter table holdfast_messages add column later any; alter table holdfast_handled add column later any;
		update holdfast_schema set version = 99`)
	w.handled(e, 3)
	for _, w.cfg.Install = range []bool{true, false} {
		refused(t, w.cfg, "its tables have version 99 and this program knows versions up to", "build the program with the newer Holdfast")
	}
	w.handled(e, 3)
	e.end()
}
