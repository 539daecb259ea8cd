package acceptance_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

const someRights = "SELECT, INSERT, UPDATE, DELETE"

// servedBy starts an endpoint whose database user has the rights of docs/outbox.md, and returns the
// user. use makes a configuration one that uses the database.
func servedBy(t *testing.T, use func(*endpoint.Config, *postgres.Transport)) (h *troubled, user string) {
	t.Helper()
	owner := brokertest.Postgres(t)
	u, err := url.Parse(owner)
	must(t, err)
	user = "user_" + strings.TrimPrefix(u.Path, "/")
	quoted := pgx.Identifier{user}.Sanitize()
	execute := func(ctx context.Context, statement string) {
		conn, err := pgx.Connect(ctx, owner)
		must(t, err)
		_, err = conn.Exec(ctx, statement)
		must(t, err)
		_ = conn.Close(ctx)
	}
	execute(t.Context(), "CREATE ROLE "+quoted+" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { execute(context.Background(), "DROP OWNED BY "+quoted+"; DROP ROLE "+quoted) })
	u.User = url.UserPassword(user, "secret")
	h = troubledAt(t, owner, u.String(), func(cfg *endpoint.Config) {
		use(cfg, &postgres.Transport{URL: owner})
		e, err := endpoint.New(*cfg)
		must(t, err)
		must(t, e.Install(t.Context()))
		conn, err := (&postgres.Transport{URL: owner}).Open(t.Context(), transport.Env{})
		must(t, err)
		shipping := transport.Plan{Queues: []transport.Queue{{Name: "shipping"}}} // where the database is the transport's
		must(t, conn.(transport.Installer).Install(t.Context(), shipping))
		must(t, conn.Close())
		execute(t.Context(), "GRANT "+someRights+" ON ALL TABLES IN SCHEMA public TO "+quoted)
		use(cfg, &postgres.Transport{URL: u.String(), Lease: troubleLease})
	})
	return h, quoted
}

// asOutbox makes the database that of the outbox.
func asOutbox(cfg *endpoint.Config, db *postgres.Transport) { cfg.Outbox = db }

// asTransport makes the database that of the queues and of the inbox.
func asTransport(cfg *endpoint.Config, db *postgres.Transport) {
	cfg.Transport, cfg.Outbox, cfg.Transactions, cfg.Remember = db, nil, endpoint.SendsAtomicWithReceive, 24*time.Hour
}

// The database takes a right to a table of the outbox away, and gives it back. All messages need
// the right: meanwhile none fails, none is lost, none is sent twice, and Health says what is
// missing.
func TestMissingOutboxRightUsesNoRetry(t *testing.T) {
	for _, c := range []struct{ right, table string }{
		{"INSERT", "sales.outbox"},
		{"INSERT", "sales.handled"},
		{"SELECT", "sales.handled"},
		{"DELETE", "sales.outbox"},
		{"UPDATE", "sales.outbox"},
		{"SELECT", "sales.outbox"},
		{someRights, "sales.outbox"},
	} {
		t.Run(c.right+" on "+c.table, func(t *testing.T) {
			t.Parallel()
			h, user := servedBy(t, asOutbox)
			h.send(5)
			h.arrived()
			h.exec(`REVOKE ` + c.right + ` ON "` + c.table + `" FROM ` + user)
			h.send(5)
			h.await("the missing right is reported", func() bool {
				reasons := strings.Join(h.e.Health().Reasons, "; ")
				return strings.Contains(reasons, "permission denied for table "+c.table) &&
					strings.Contains(reasons, "grant SELECT, INSERT, UPDATE and DELETE")
			})
			<-time.After(2 * troubleLease)
			h.exec(`GRANT ` + c.right + ` ON "` + c.table + `" TO ` + user)
			h.send(1)
			h.arrived()
			h.await("the endpoint is ready again", func() bool { return h.e.Health().Ready })
		})
	}
}

// With an inbox in the database of the queues it is the same.
func TestMissingInboxRightUsesNoRetry(t *testing.T) {
	for _, right := range []string{"INSERT", "SELECT"} {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			h, user := servedBy(t, asTransport)
			h.send(5)
			h.arrived()
			h.exec(`REVOKE ` + right + ` ON "sales.handled" FROM ` + user)
			h.send(5)
			h.await("the missing right is reported", func() bool {
				reasons := strings.Join(h.e.Health().Reasons, "; ")
				return strings.Contains(reasons, "the inbox has not been usable") &&
					strings.Contains(reasons, "permission denied for table sales.handled") &&
					strings.Contains(reasons, "grant SELECT, INSERT, UPDATE and DELETE")
			})
			<-time.After(2 * troubleLease)
			h.exec(`GRANT ` + right + ` ON "sales.handled" TO ` + user)
			h.send(1)
			h.arrived()
			h.await("the endpoint is ready again", func() bool { return h.e.Health().Ready })
		})
	}
}

// A right to a queue that one handler sends to is missing to its messages alone.
func TestAMissingRightToAQueueIsAFailureOfItsMessages(t *testing.T) {
	t.Parallel()
	h, user := servedBy(t, asTransport)
	h.send(2)
	h.arrived()
	h.exec(`REVOKE INSERT ON shipping FROM ` + user)
	h.send(1)
	h.await("the messages fail", func() bool { return h.failed() == 2 })
	if reasons := h.e.Health().Reasons; len(reasons) > 0 {
		t.Errorf("the endpoint has reasons not to be ready: %q", reasons)
	}
}

// A right that one handler's statement lacks is the failure of its messages.
func TestAMissingRightOfAHandlerIsAFailureOfItsMessage(t *testing.T) {
	t.Parallel()
	h, user := servedBy(t, func(cfg *endpoint.Config, db *postgres.Transport) {
		cfg.Outbox = db
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: recoverability.None}
	})
	h.send(2)
	h.arrived()
	h.exec(`REVOKE INSERT ON orders FROM ` + user)
	h.send(1)
	h.await("the message of that handler fails, and the other is sent", func() bool {
		return len(h.broker.Messages("error")) == 1 && len(h.broker.Messages("shipping")) == 5
	})
	if reasons := h.e.Health().Reasons; len(reasons) > 0 {
		t.Errorf("the endpoint has reasons not to be ready: %q", reasons)
	}
}

// Without the right to read the inbox the endpoint does not start.
func TestAMissingRightToTheInboxAtTheStart(t *testing.T) {
	t.Parallel()
	h, user := servedBy(t, asOutbox)
	h.e.end()
	h.exec(`REVOKE SELECT ON "sales.handled" FROM ` + user)
	refused(t, h.cfg, `inbox "sales.handled"`, "permission denied for table sales.handled", "grant SELECT, INSERT, UPDATE and DELETE")
}
