package drivertests

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

func isCancelled(err error) bool { return errors.Is(err, context.Canceled) }

// refused checks that nothing can be sent in tx, and why.
func (s *shop) refused(tx any, why string) {
	s.Helper()
	err := s.send(tx, "refused")
	if err == nil || !strings.Contains(err.Error(), why) {
		s.Errorf("error %v, want %q in it", err, why)
	}
}

func TestATransactionThatCannotWriteIsAnError(t *testing.T) {
	t.Parallel()
	eachLibrary(t, func(t *testing.T, s *shop, begin library) {
		reading := s.begin(begin, &sql.TxOptions{ReadOnly: true})
		s.refused(reading.tx, "cannot execute INSERT in a read-only transaction")
		_ = reading.rollback()

		aborted := s.begin(begin, nil)
		if aborted.exec(`INSERT INTO no_table VALUES (1)`) == nil {
			t.Fatal("the statement has succeeded")
		}
		s.refused(aborted.tx, "current transaction is aborted")
		_ = aborted.rollback()

		for _, end := range []func(usersTx) error{usersTx.ended, usersTx.undone} {
			over := s.begin(begin, nil)
			must(t, end(over))
			err := s.send(over.tx, "late")
			if !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("error %v, want that the transaction is over", err)
			}
		}
		s.arrives(begin)
	})
}

func (tx usersTx) ended() error  { return tx.commit() }
func (tx usersTx) undone() error { return tx.rollback() }

// A transaction of another database is refused whether that has the tables of the outbox or not,
// and even where its name is the same and only the server is another.
func TestATransactionOfAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	empty, same := brokertest.Postgres(t), brokertest.Postgres(t)
	openShop(t, same, &postgres.Transport{})
	elsewhere := sameName(t, s.url)
	openShop(t, elsewhere, &postgres.Transport{})
	for name, open := range libraries() {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			for url, why := range map[string]string{
				empty: "and the queues are in", same: "and the queues are in", elsewhere: "of another server",
			} {
				tx := s.begin(open(t, url), nil)
				s.refused(tx.tx, why)
				must(t, tx.rollback())
			}
			s.arrives(open(t, s.url))
		})
	}
	for _, url := range []string{same, elsewhere} {
		db := openPgx(pgx.QueryExecModeCacheStatement)(t, url)
		var n int
		must(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM "web.outbox"`).Scan(&n))
		if n != 0 {
			t.Errorf("%d messages were written to another database", n)
		}
		must(t, db.Close())
	}
}

// sameName returns the URL of a database on another server with the same name as that of database.
func sameName(t *testing.T, database string) string {
	t.Helper()
	node := brokertest.OwnPostgres(t)
	name, err := url.Parse(database)
	must(t, err)
	other, err := url.Parse(node.URL)
	must(t, err)
	db := openPgx(pgx.QueryExecModeCacheStatement)(t, node.URL)
	_, err = db.ExecContext(t.Context(), `CREATE DATABASE `+pgx.Identifier{name.Path[1:]}.Sanitize())
	must(t, errors.Join(err, db.Close()))
	other.Path = name.Path
	return other.String()
}

func TestAValueThatIsNoTransactionIsRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	db := openPgx(pgx.QueryExecModeCacheStatement)(t, s.url)
	t.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	pool, err := pgxpool.New(t.Context(), s.url)
	must(t, err)
	t.Cleanup(pool.Close)
	ofGorm, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: db}), &gorm.Config{})
	must(t, err)
	ofSqlx, err := sqlx.NewDb(db, "pgx").Beginx()
	must(t, err)
	t.Cleanup(func() { _ = ofSqlx.Rollback() })
	for _, tx := range []any{db, conn, pool, ofGorm, ofSqlx, 1, "tx", struct{}{}} {
		s.refused(tx, "want a pgx.Tx of github.com/jackc/pgx/v5 or a *sql.Tx")
	}
	var none *sql.Tx
	var noPgx pgx.Tx
	for _, tx := range []any{nil, none, noPgx, gormTx(ofGorm), (*sqlx.Tx)(nil)} {
		s.refused(tx, "is nil")
	}
}
