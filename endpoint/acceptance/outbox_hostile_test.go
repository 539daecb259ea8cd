package acceptance_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// troubled is an endpoint without retries, whose handler writes to a table of a database that
// troubles befall.
type troubled struct {
	t      *testing.T
	url    string
	sql    *pgx.Conn // of the owner
	broker *inmemory.Transport
	log    *lockedBuffer
	cfg    endpoint.Config
	e      *running
	sent   int
}

// troubleLease is the lease of a stored message. Troubles last longer, so that the leases expire
// meanwhile.
const troubleLease = time.Second

// troubledAt starts an endpoint whose outbox is at url, and owner connects to the same database.
func troubledAt(t *testing.T, owner, url string, change func(*endpoint.Config)) *troubled {
	t.Helper()
	sql, err := pgx.Connect(t.Context(), owner)
	must(t, err)
	t.Cleanup(func() { _ = sql.Close(context.Background()) })
	h := &troubled{t: t, url: url, sql: sql, broker: &inmemory.Transport{}, log: &lockedBuffer{}}
	h.broker.CreateQueues("shipping")
	h.exec("CREATE TABLE orders (id text)")
	cfg := sales(h.broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
		tx, err := postgres.Tx(ctx, s)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", o.ID); err != nil {
			return err
		}
		return s.Send(ctx, shipOrder(o))
	}), endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o orderAccepted) error {
		return s.Send(ctx, shipOrder(o)) // writes nothing itself
	}))
	cfg.Outbox = &postgres.Transport{URL: url, Lease: troubleLease}
	cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
	cfg.Logger = slog.New(slog.NewTextHandler(h.log, nil))
	if change != nil {
		change(&cfg)
	}
	h.cfg, h.e = cfg, start(t, cfg)
	return h
}

func (h *troubled) exec(statement string) {
	h.t.Helper()
	_, err := h.sql.Exec(h.t.Context(), statement)
	must(h.t, err)
}

func (h *troubled) send(n int) {
	h.t.Helper()
	for range n {
		h.sent++
		h.e.send(placeOrder{fmt.Sprint(h.sent)})
		h.e.send(orderAccepted{fmt.Sprint(h.sent)}, endpoint.To("sales"))
	}
}

// arrived waits until all is written once and sent, each message under one id. A slow answer may
// let a lease of the relay expire: then a message is sent again, under the same id.
func (h *troubled) arrived() {
	h.t.Helper()
	h.await("all messages are handled and sent", func() bool {
		return h.rows() >= h.sent && h.shipped() >= 2*h.sent
	})
	if n, sent := h.rows(), h.shipped(); n != h.sent || sent != 2*h.sent {
		h.t.Errorf("%d rows and %d sent messages, want %d and %d", n, sent, h.sent, 2*h.sent)
	}
	for _, m := range h.broker.Messages("error") {
		h.t.Errorf("a message failed: %v", m.Headers)
	}
	if n := h.failed(); n > 0 {
		h.t.Errorf("%d messages failed", n)
	}
}

// shipped counts the messages that were sent, by id.
func (h *troubled) shipped() (n int) {
	if h.cfg.Outbox == nil {
		must(h.t, h.sql.QueryRow(h.t.Context(), "SELECT count(*) FROM shipping").Scan(&n))
		return n
	}
	ids := map[string]struct{}{}
	for _, m := range h.broker.Messages("shipping") {
		ids[m.ID] = struct{}{}
	}
	return len(ids)
}

func (h *troubled) failed() (n int) {
	if h.cfg.Outbox != nil {
		return len(h.broker.Messages("error"))
	}
	must(h.t, h.sql.QueryRow(h.t.Context(), "SELECT count(*) FROM error").Scan(&n))
	return n
}

func (h *troubled) rows() (n int) {
	must(h.t, h.sql.QueryRow(h.t.Context(), "SELECT count(*) FROM orders").Scan(&n))
	return n
}

func (h *troubled) await(what string, done func() bool) {
	h.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(timeLimit); !done(); {
		select {
		case <-tick.C:
		case <-late:
			h.t.Fatalf("not so: %s; %d rows, %d sent, %d failed of %d; health %+v; log:\n%.4000s", what, h.rows(),
				len(h.broker.Messages("shipping")), len(h.broker.Messages("error")), h.sent, h.e.Health(), h.log)
		}
	}
}

// Whatever the database refuses for a while, no message fails, none is lost and none is handled
// twice.
func TestOutboxTroublesUseNoRetry(t *testing.T) {
	const fullDisk = `CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
		CREATE TRIGGER full_disk BEFORE INSERT ON %s EXECUTE FUNCTION full_disk()`
	troubles := map[string]struct{ begin, end string }{
		"the outbox is locked":  {`BEGIN; LOCK TABLE "sales.outbox"`, `COMMIT`},
		"the inbox is locked":   {`BEGIN; LOCK TABLE "sales.handled"`, `COMMIT`},
		"the inbox is indexed":  {`BEGIN; LOCK TABLE "sales.handled" IN SHARE MODE`, `COMMIT`},
		"the outbox is altered": {`BEGIN; ALTER TABLE "sales.outbox" ADD COLUMN more int`, `COMMIT`},
		"no disk for the outbox": {
			fmt.Sprintf(fullDisk, `"sales.outbox"`), `DROP FUNCTION full_disk CASCADE`,
		},
		"no disk for the handlers": {fmt.Sprintf(fullDisk, "orders"), `DROP FUNCTION full_disk CASCADE`},
		"the outbox is gone":       {`ALTER TABLE "sales.outbox" RENAME TO away`, `ALTER TABLE away RENAME TO "sales.outbox"`},
		"the inbox is gone":        {`ALTER TABLE "sales.handled" RENAME TO away`, `ALTER TABLE away RENAME TO "sales.handled"`},
	}
	for name, trouble := range troubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := brokertest.Postgres(t)
			h := troubledAt(t, url, url, nil)
			h.send(5)
			h.arrived()
			h.exec(trouble.begin)
			h.send(20)
			<-time.After(2 * troubleLease)
			h.exec(trouble.end)
			h.arrived()
		})
	}
}

// A message whose commit fails always as in an outage fails by itself: others are handled, and the
// endpoint is ready.
func TestCommitThatAlwaysFails(t *testing.T) {
	const refuse = `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.id ~ '^[0-9A-Z]{5}$' THEN RAISE EXCEPTION 'refused' USING ERRCODE = NEW.id; END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION refuse()`
	ids := []string{"57014", "XX000", "53200", "08001", "0A000", "read only"}
	for _, atomic := range []bool{false, true} {
		t.Run(fmt.Sprintf("atomic %t", atomic), func(t *testing.T) {
			t.Parallel()
			url := brokertest.Postgres(t)
			h := troubledAt(t, url, url, func(cfg *endpoint.Config) {
				cfg.Handlers = append(cfg.Handlers, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o shipOrder) error {
					tx, err := postgres.Tx(ctx, s)
					if err == nil && o.ID == "read only" {
						_, err = tx.Exec(ctx, "SET TRANSACTION READ ONLY")
					} else if err == nil {
						_, err = tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", o.ID)
					}
					return err
				}))
				if atomic {
					db := &postgres.Transport{URL: url, Lease: troubleLease}
					cfg.Transport, cfg.Outbox, cfg.Transactions, cfg.Remember = db, nil, endpoint.SendsAtomicWithReceive, 24*time.Hour
					cfg.Routes[0] = endpoint.RouteTo[shipOrder]("error")
				}
			})
			h.exec(refuse)
			for _, id := range ids {
				h.e.send(shipOrder{id}, endpoint.To("sales"))
			}
			h.await("the messages have failed", func() bool { return h.failed() == len(ids) })
			if reasons := h.e.Health().Reasons; len(reasons) > 0 {
				t.Errorf("the endpoint is not well: %q", reasons)
			}
			h.send(3)
			h.await("the others are handled", func() bool { return h.rows() == 3 })
		})
	}
}

// The database becomes a standby: it answers, and takes no writes. The endpoint reaches it through
// a proxy that breaks all connections at each change. A session has the setting from its start, and
// one that is starting cannot be ended.
func TestReadOnlyDatabaseUsesNoRetry(t *testing.T) {
	t.Parallel()
	owner := brokertest.Postgres(t)
	u, err := url.Parse(owner)
	must(t, err)
	proxy := brokertest.NewProxy(t, u.Host)
	h := troubledAt(t, owner, proxy.URL(t, owner), nil)
	h.send(5)
	h.arrived()
	var name string
	must(t, h.sql.QueryRow(t.Context(), "SELECT quote_ident(current_database())").Scan(&name))
	proxy.Refuse()
	h.exec("ALTER DATABASE " + name + " SET default_transaction_read_only = on")
	proxy.Resume()
	h.send(20)
	h.await("the endpoint says that the outbox cannot be used", func() bool {
		return strings.Contains(strings.Join(h.e.Health().Reasons, " "), "outbox has not been usable")
	})
	<-time.After(2 * troubleLease)
	proxy.Refuse()
	h.exec("ALTER DATABASE " + name + " RESET default_transaction_read_only")
	proxy.Resume()
	h.arrived()
}

func (h *troubled) endSessions() {
	h.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
}

// with returns a database URL with a setting of its sessions.
func with(t *testing.T, server, name, value string) string {
	u, err := url.Parse(server)
	must(t, err)
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// However the database is reached and configured, an outbox in it does its work.
func TestAnOutboxOnAnOddDatabase(t *testing.T) {
	worlds := map[string]func(t *testing.T) (owner, url string){
		"serializable": func(t *testing.T) (string, string) {
			owner := brokertest.Postgres(t)
			return owner, with(t, owner, "default_transaction_isolation", "serializable")
		},
		"slow answers": func(t *testing.T) (string, string) {
			owner := brokertest.Postgres(t)
			u, err := url.Parse(owner)
			must(t, err)
			proxy := brokertest.NewProxy(t, u.Host)
			proxy.Delay(troubleLease / 10)
			return owner, proxy.URL(t, owner)
		},
		"pgbouncer": func(t *testing.T) (string, string) { return brokertest.PgBouncer(t) },
	}
	for name, open := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner, url := open(t)
			h := troubledAt(t, owner, url, func(cfg *endpoint.Config) {
				if name == "pgbouncer" {
					cfg.Outbox = &postgres.Transport{URL: url, Pooled: true, ListenURL: owner}
				}
			})
			h.send(5)
			h.arrived()
			if n := len(h.broker.Messages("error")); n != 0 {
				t.Errorf("%d messages failed", n)
			}
		})
	}
}

// An endpoint that may not remove old ids warns, and goes on.
func TestWithoutTheRightToRemoveIDsTheWorkGoesOn(t *testing.T) {
	t.Parallel()
	owner := brokertest.Postgres(t)
	h := troubledAt(t, owner, owner, nil)
	h.send(5)
	h.arrived()
	h.exec(`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'permission denied for table' USING ERRCODE = '42501'; END $$;
		CREATE TRIGGER keep BEFORE DELETE ON "sales.handled" EXECUTE FUNCTION keep();
		UPDATE holdfast_handled SET forgotten_at = now() - interval '1 day';
		INSERT INTO "sales.handled" (key, at, sum) VALUES (gen_random_uuid(), now() - interval '30 days', 0)`)
	h.e.end()
	h.e = start(t, h.cfg)
	h.send(5)
	h.arrived()
	h.await("a warning of the ids that cannot be removed", func() bool {
		return strings.Contains(h.log.String(), "ids of handled messages that are old enough cannot be removed")
	})
}
