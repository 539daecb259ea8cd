package sqlite_test

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqlite"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{
		Open:           file(0),
		ShortLease:     file(4 * time.Second),
		PutUndecodable: putUndecodable,
		Begin:          begin,
		Write:          write,
		Sweep:          sweep,
	})
}

// file opens a file of each rule's own.
func file(lease time.Duration) func(testing.TB) transport.Transport {
	return func(t testing.TB) transport.Transport {
		return &sqlite.Transport{Path: filepath.Join(t.TempDir(), "queues.db"), Lease: lease}
	}
}

// connect opens the file as users do.
func connect(t testing.TB, tr transport.Transport) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+tr.(*sqlite.Transport).Path+"?_txlock=immediate&_busy_timeout=20000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// write writes to a table of the user's with OnCommit.
func write(t testing.TB, tr transport.Transport, tx transport.HandlerTx) func() bool {
	t.Helper()
	db := connect(t, tr)
	if _, err := db.ExecContext(t.Context(), `create table if not exists writes (id integer primary key)`); err != nil {
		t.Fatal(err)
	}
	id := rand.Int64()
	err := sqlite.OnCommit(t.Context(), given{tx}, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into writes (id) values (?)`, id)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() bool {
		var n int
		if err := db.QueryRowContext(t.Context(), `select count(*) from writes where id = ?`, id).Scan(&n); err != nil {
			t.Error(err)
		}
		return n > 0
	}
}

// sweep opens the file as another process does, which removes the ids that are older than
// Env.Remember of the rule a second after it has begun to use the inbox.
func sweep(t testing.TB, tr transport.Transport, inbox string) {
	t.Helper()
	const remember = 2 * time.Second
	db, old := connect(t, tr), time.Now().Add(-remember).UnixMicro()
	if _, err := db.ExecContext(t.Context(), `update holdfast_inboxes set forgotten_at = 0 where name = ?`, inbox); err != nil {
		t.Fatal(err)
	}
	conn, err := tr.Open(t.Context(), transport.Env{Endpoint: "sweep", Remember: remember})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.(transport.OutboxStore).FindHandled(t.Context(), inbox, []transport.HandledKey{{}}); err != nil {
		t.Fatal(err)
	}
	for left := 1; left > 0; {
		if err := backoff.Sleep(t.Context(), 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if err := db.QueryRowContext(t.Context(), `select count(*) from holdfast_handled where at < ?`, old).Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
}

// given is a session of the endpoint with a transaction.
type given struct{ tx transport.HandlerTx }

func (s given) Tx(context.Context) (transport.HandlerTx, error) { return s.tx, nil }

// begin begins a transaction on a connection of its own.
func begin(t testing.TB, tr transport.Transport) transporttest.UserTx {
	t.Helper()
	tx, err := connect(t, tr).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.UserTx{
		Tx:       tx,
		Commit:   func(context.Context) error { return tx.Commit() },
		Rollback: func(context.Context) error { return tx.Rollback() },
	}
}

func putUndecodable(t testing.TB, tr transport.Transport, queue string) {
	t.Helper()
	_, err := connect(t, tr).ExecContext(t.Context(), `insert into holdfast_messages (queue, headers, body) values (?, '{"not', x'ff')`, queue)
	if err != nil {
		t.Error(err)
	}
}
