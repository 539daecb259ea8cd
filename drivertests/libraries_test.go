package drivertests

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/driver/pgdriver"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// usersTx is a transaction of a program.
type usersTx struct {
	tx       any // what the program passes to endpoint.In
	exec     func(text string) error
	commit   func() error
	rollback func() error
}

// library begins transactions of a program. opts may be nil.
type library func(ctx context.Context, opts *sql.TxOptions) (usersTx, error)

// opener connects to the database of a URL.
type opener func(t testing.TB, url string) library

// libraries are those that the tests use, each in the modes in which its statements differ.
func libraries() map[string]opener {
	all := map[string]opener{
		"pgx stdlib, default":         throughSQL(openPgx(pgx.QueryExecModeCacheStatement)),
		"pgx stdlib, simple protocol": throughSQL(openPgx(pgx.QueryExecModeSimpleProtocol)),
		"pgx stdlib, exec":            throughSQL(openPgx(pgx.QueryExecModeExec)),
		"lib/pq":                      throughSQL(openPq("")),
		"lib/pq, binary parameters":   throughSQL(openPq("&binary_parameters=yes")),
		"pgdriver":                    throughSQL(openPgdriver),
		"gorm":                        openGorm(false, false),
		"gorm, simple protocol":       openGorm(true, false),
		"gorm, prepared statements":   openGorm(false, true),
		"sqlx":                        openSqlx,
		"bun":                         openBun,
	}
	for name, mode := range map[string]pgx.QueryExecMode{
		"pgx, default": pgx.QueryExecModeCacheStatement, "pgx, simple protocol": pgx.QueryExecModeSimpleProtocol,
	} {
		all[name] = openPool(mode)
	}
	return all
}

// eachLibrary runs test with a new shop and each library on the database of its outbox.
func eachLibrary(t *testing.T, test func(t *testing.T, s *shop, begin library)) {
	s := newShop(t)
	for name, open := range libraries() {
		t.Run(name, func(t *testing.T) { test(t, s.in(t), open(t, s.url)) })
	}
}

func openPool(mode pgx.QueryExecMode) opener {
	return func(t testing.TB, url string) library {
		cfg, err := pgxpool.ParseConfig(url)
		must(t, err)
		cfg.ConnConfig.DefaultQueryExecMode = mode
		cfg.MaxConns = users
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		must(t, err)
		t.Cleanup(pool.Close)
		return func(ctx context.Context, opts *sql.TxOptions) (usersTx, error) {
			tx, err := pool.BeginTx(ctx, pgxOptions(opts))
			if err != nil {
				return usersTx{}, err
			}
			after := context.WithoutCancel(ctx)
			exec := func(text string) error {
				_, err := tx.Exec(ctx, text)
				return err
			}
			return usersTx{tx, exec, func() error { return tx.Commit(after) }, func() error { return tx.Rollback(after) }}, nil
		}
	}
}

func pgxOptions(opts *sql.TxOptions) (of pgx.TxOptions) {
	if opts == nil {
		return of
	}
	if opts.ReadOnly {
		of.AccessMode = pgx.ReadOnly
	}
	if opts.Isolation == sql.LevelSerializable {
		of.IsoLevel = pgx.Serializable
	}
	return of
}

// ofSQL is a transaction of database/sql.
func ofSQL(ctx context.Context, tx *sql.Tx) usersTx {
	exec := func(text string) error {
		_, err := tx.ExecContext(ctx, text)
		return err
	}
	return usersTx{tx, exec, tx.Commit, tx.Rollback}
}

// throughSQL begins transactions of database/sql itself.
func throughSQL(open func(t testing.TB, url string) *sql.DB) opener {
	return func(t testing.TB, url string) library {
		db := open(t, url)
		db.SetMaxIdleConns(users)
		t.Cleanup(func() { _ = db.Close() })
		return func(ctx context.Context, opts *sql.TxOptions) (usersTx, error) {
			tx, err := db.BeginTx(ctx, opts)
			if err != nil {
				return usersTx{}, err
			}
			return ofSQL(ctx, tx), nil
		}
	}
}

func openPgx(mode pgx.QueryExecMode) func(testing.TB, string) *sql.DB {
	return func(t testing.TB, url string) *sql.DB {
		cfg, err := pgx.ParseConfig(url)
		must(t, err)
		cfg.DefaultQueryExecMode = mode
		return stdlib.OpenDB(*cfg)
	}
}

func openPq(options string) func(testing.TB, string) *sql.DB {
	return func(t testing.TB, url string) *sql.DB {
		connector, err := pq.NewConnector(url + options)
		must(t, err)
		return sql.OpenDB(connector)
	}
}

func openPgdriver(_ testing.TB, url string) *sql.DB {
	return sql.OpenDB(pgdriver.NewConnector(pgdriver.WithDSN(url)))
}

// openGorm begins transactions of GORM, with its driver for PostgreSQL.
func openGorm(simple, prepared bool) opener {
	return func(t testing.TB, url string) library {
		dialector := gormpostgres.New(gormpostgres.Config{DSN: url, PreferSimpleProtocol: simple})
		db, err := gorm.Open(dialector, &gorm.Config{PrepareStmt: prepared, Logger: logger.Discard})
		must(t, err)
		t.Cleanup(func() {
			of, err := db.DB()
			must(t, err)
			_ = of.Close()
		})
		return func(ctx context.Context, opts *sql.TxOptions) (usersTx, error) {
			tx := db.WithContext(ctx).Begin(opts)
			if tx.Error != nil {
				return usersTx{}, tx.Error
			}
			exec := func(text string) error { return tx.Exec(text).Error }
			return usersTx{
				gormTx(tx), exec, func() error { return tx.Commit().Error }, func() error { return tx.Rollback().Error },
			}, nil
		}
	}
}

// gormTx returns the *sql.Tx of a transaction of GORM.
func gormTx(tx *gorm.DB) *sql.Tx {
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok { // with gorm.Config.PrepareStmt
		pool = prepared.Tx
	}
	of, _ := pool.(*sql.Tx) // nil outside a transaction, which endpoint.In refuses
	return of
}

func openSqlx(t testing.TB, url string) library {
	db, err := sqlx.Open("postgres", url)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return func(ctx context.Context, opts *sql.TxOptions) (usersTx, error) {
		tx, err := db.BeginTxx(ctx, opts)
		if err != nil {
			return usersTx{}, err
		}
		return ofSQL(ctx, tx.Tx), nil
	}
}

func openBun(t testing.TB, url string) library {
	db := bun.NewDB(openPgdriver(t, url), pgdialect.New())
	t.Cleanup(func() { _ = db.Close() })
	return func(ctx context.Context, opts *sql.TxOptions) (usersTx, error) {
		tx, err := db.BeginTx(ctx, opts)
		if err != nil {
			return usersTx{}, err
		}
		return ofSQL(ctx, tx.Tx), nil
	}
}
