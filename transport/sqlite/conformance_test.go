package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqlite"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{
		Open:           file(0),
		ShortLease:     file(time.Second),
		PutUndecodable: putUndecodable,
		Begin:          begin,
	})
}

// file opens a file of each rule's own.
func file(lease time.Duration) func(testing.TB) transport.Transport {
	return func(t testing.TB) transport.Transport {
		return &sqlite.Transport{Path: filepath.Join(t.TempDir(), "queues.db"), Lease: lease}
	}
}

// begin begins a transaction on a connection of its own.
func begin(t testing.TB, tr transport.Transport) transporttest.UserTx {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+tr.(*sqlite.Transport).Path+"?_txlock=immediate&_busy_timeout=20000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
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
	db, err := sql.Open("sqlite", "file:"+tr.(*sqlite.Transport).Path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		t.Error(err)
		return
	}
	defer db.Close()
	_, err = db.ExecContext(t.Context(), `insert into holdfast_messages (queue, headers, body) values (?, '{"not', x'ff')`, queue)
	if err != nil {
		t.Error(err)
	}
}
