package postgres

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/transport"
)

func TestWhatStatementsLeaveInTheirSession(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"":                                                "",
		"SELECT 1":                                        "",
		"SET search_path = other":                         "SET",
		"set SESSION search_path TO other":                "SET",
		"\n\t sEt role tenant":                            "SET",
		"SET SESSION AUTHORIZATION tenant":                "SET",
		"-- why\nSET x.y = 1":                             "SET",
		"/* a /* nested */ one */ SET a.b=1":              "SET",
		"SELECT 1; SET a.b = 1":                           "SET",
		"SET LOCAL search_path = other":                   "",
		"SET LOCAL a.b = 1; SET a.b = 1":                  "SET",
		"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE":    "",
		"SET CONSTRAINTS ALL DEFERRED":                    "",
		"UPDATE t SET a = 1":                              "",
		"UPDATE t\nSET a = 'SET b'":                       "",
		"INSERT INTO t VALUES ('x; SET a = 1')":           "",
		`SELECT E'\'; SET a = 1'`:                         "",
		`SELECT '\'; SET a.b = 1`:                         "SET",
		`SELECT e'it''s \'; SET a = 1'`:                   "",
		`SELECT 1 FROM t AS e WHERE e = '\'; SET a.b = 1`: "SET",
		`SELECT "; SET a"`:                                "",
		"SELECT $$; SET a = 1$$":                          "",
		"SELECT $x$; SET a = 1;$$ $x$":                    "",
		"SELECT $1; RESET ALL":                            "RESET",
		"RESET ROLE":                                      "RESET",
		"LISTEN orders":                                   "LISTEN",
		"PREPARE p AS SELECT 1":                           "PREPARE",
		"DEALLOCATE ALL":                                  "DEALLOCATE",
		"DISCARD TEMP":                                    "DISCARD",
		"CREATE TEMP TABLE t (a int)":                     "TEMPORARY",
		"CREATE LOCAL TEMPORARY TABLE t (a int)":          "TEMPORARY",
		"CREATE OR REPLACE TEMP VIEW v AS SELECT 1":       "TEMPORARY",
		"SELECT 1 AS a INTO TEMP t":                       "TEMPORARY",
		"SELECT 1 AS a INTO LOCAL TEMP t":                 "TEMPORARY",
		"CREATE TABLE pg_temp.t (a int)":                  "TEMPORARY",
		"CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'": "TEMPORARY",
		"SELECT 1 AS a INTO pg_temp.t":                                "TEMPORARY",
		"CREATE TABLE pg_temp.t (a int) ON COMMIT DROP":               "",
		"INSERT INTO pg_temp.t VALUES (1)":                            "",
		"INSERT INTO temp (a) VALUES (1)":                             "",
		"MERGE INTO temp USING t ON a = b WHEN MATCHED THEN DELETE":   "",
		"SELECT local.temp, global.temp FROM local, global":           "",
		"ALTER TABLE t ADD temp int":                                  "",
		"WITH hold AS (SELECT 1) SELECT 1 FROM hold":                  "",
		"CREATE TEMP TABLE t (a int) ON COMMIT DROP":                  "",
		"SELECT temp FROM weather":                                    "",
		"DECLARE c CURSOR WITH HOLD FOR SELECT 1":                     "WITH HOLD",
		"SELECT pg_advisory_lock(1)":                                  "pg_advisory_lock",
		"SELECT pg_catalog.PG_Try_Advisory_Lock_Shared($1)":           "pg_try_advisory_lock_shared",
		"SELECT pg_advisory_xact_lock(1)":                             "",
		"SELECT pg_advisory_lock_of(1), set_config('a.b', 'x', true)": "",
		"\f\vSET a = 1":                                                      "SET",
		"-- a comment\rSET a = 1":                                            "SET",
		"SELECT set_config('a.b', $1, false)":                                "set_config",
		"SELECT set_config('a.b', $1, $2)":                                   "set_config",
		"SELECT set_config('a.b', upper($1), true)":                          "",
		"SELECT set_config('a.b', 'x', TRUE), set_config('a.c', 'y', false)": "set_config",
	} {
		var got traces
		if got.note(sql); got.left != want || got.role {
			t.Errorf("%q leaves %+v, want %q", sql, got, want)
		}
	}
}

func TestStatementsThatMayTakeAnotherRole(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"SELECT 1":                            false,
		"SET LOCAL ROLE a":                    true,
		"set local role to a":                 true,
		"SET LOCAL a.role = 'role'; SELECT 1": false,
		"SELECT set_config('role', $1, true)": true,
		"SELECT set_config('ROLE', 'a', true), set_config('shop.tenant', $1, true)":     true,
		"SELECT set_config($1, $2, true)":                                               true,
		"SELECT set_config(E'role', $1, true)":                                          true,
		"SELECT set_config('shop.tenant', 'role', true)":                                false,
		"SELECT set_config('shop.tenant', $1, true) WHERE a = 'role' AND role = 'role'": false,
	} {
		var got traces
		if got.note(sql); got.role != want || got.left != "" {
			t.Errorf("%q: %+v, want role %v", sql, got, want)
		}
	}
}

func TestStatementsThatEndTheirTransaction(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"COMMIT": true, "commit work and chain": true, "END": true, " aborT": true, "ROLLBACK": true,
		"ROLLBACK WORK": true, "ROLLBACK TRANSACTION AND NO CHAIN": true, "PREPARE TRANSACTION 'a'": true,
		"SELECT 1;rollback;BEGIN": true, "-- why\nCOMMIT": true,
		"ROLLBACK TO a": false, "ROLLBACK TO SAVEPOINT a": false, "ROLLBACK WORK TO a": false,
		"rollback transaction to savepoint a": false, "RELEASE a": false, "SAVEPOINT a": false, "BEGIN": false,
		"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 1 END; END": false,
		"create procedure p() begin atomic insert into t values (1); end; COMMIT":                      true,
		"SELECT 'COMMIT'": false, "SELECT CASE WHEN true THEN 1 END": false, "UPDATE t SET commit = 1": false,
		"CREATE TEMP TABLE t (a int) ON COMMIT DROP": false, "SELECT $$;COMMIT;$$": false,
	} {
		var got traces
		if got.note(sql); got.ended != want {
			t.Errorf("%q ends its transaction: %v", sql, got.ended)
		}
	}
}

func FuzzStatements(f *testing.F) {
	for _, sql := range []string{"SET a = 1", "$a$ $a", "/*/**/", "'\\", `"`, "SELECT $1", "E'\\'", "set_config((", "\xff;temp", "0set", "-\rSet", "pg_advisory_lock0"} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		var got traces
		if got.note(sql); got.left == "" {
			if got.note("SET LOCAL ROLE a; SET a.b = 1;" + sql); got.left == "" || !got.role {
				t.Errorf("SET before %q is not seen", sql)
			}
		}
		if mayLeave(sql) {
			return
		}
		for s, more := (&statementWords{sql: sql}), true; more; {
			var words []string
			if words, more = s.next(); leaves(words) != "" || changesRole(words) || ends(words) {
				t.Errorf("the first look at %q finds nothing, the second one %q", sql, words)
			}
		}
	})
}

// A statement without the words costs nothing, also if names in the statement begin with one of
// them.
func TestHarmlessStatementsAllocateNothing(t *testing.T) {
	var got traces
	for _, sql := range []string{
		`UPDATE "holdfast-rows" SET temperature = $1, loads = loads + 1 WHERE setting = $2 AND prepared`,
		"INSERT INTO holders (id, listener, discarded) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET resets = 1",
		"SELECT pg_advisory_xact_lock($1), set_config_id FROM temps",
	} {
		if n := testing.AllocsPerRun(100, func() { got.note(sql) }); n > 0 {
			t.Errorf("%v allocations for %s", n, sql)
		}
	}
}

func BenchmarkLeaves(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		new(traces).note("INSERT INTO orders (id, customer, total) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET total = excluded.total")
	}
}

// tenant creates a role without rights, and returns its quoted name.
func (w *world) tenant() (role string) {
	role = quote(strings.ReplaceAll(w.schema, `"`, "") + " tenant")
	w.exec("CREATE ROLE " + role)
	w.t.Cleanup(func() {
		_, err := w.sql.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		ok(w.t, err)
	})
	return role
}

// TestAHandlerMayTakeAnotherRole has the role of a tenant, who may not write to the queues, in a
// handler's transaction.
func TestAHandlerMayTakeAnotherRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	role := w.tenant()
	shop := w.schema + "_shop"
	w.exec("CREATE SCHEMA " + shop + "; CREATE TABLE " + shop + ".orders (id int)")
	t.Cleanup(func() {
		_, err := w.sql.Exec(context.Background(), "DROP SCHEMA "+shop+" CASCADE")
		ok(t, err)
	})
	w.exec("GRANT USAGE ON SCHEMA " + shop + " TO " + role + "; GRANT INSERT ON " + shop + ".orders TO " + role)
	order := func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), "INSERT INTO "+shop+".orders VALUES (1)")
		ok(t, err)
	}
	c := w.open()
	send(t, c, to("in", msg("1")))
	r := receiver(t, c, "in")
	tx, user := begun(t, receive(t, r, 1)[0])
	_, err := user.Exec(t.Context(), "SET LOCAL ROLE "+role)
	ok(t, err)
	order(user)
	ok(t, tx.Complete(t.Context(), []transport.Operation{to("out", msg("2"))}))
	send(t, c, to("in", msg("3")))
	tx, user = begun(t, receive(t, r, 1)[0])
	_, err = user.Exec(t.Context(), "SELECT set_config('role', $1, true)", strings.Trim(role, `"`))
	ok(t, err)
	order(user)
	ok(t, tx.Complete(t.Context(), []transport.Operation{to("out", msg("4"))}))
	var orders int
	ok(t, w.sql.QueryRow(t.Context(), "SELECT count(*) FROM "+shop+".orders").Scan(&orders))
	if in, out := w.count("in"), w.count("out"); in != 0 || out != 2 || orders != 2 {
		t.Errorf("%d messages in, %d out, %d orders; want 0, 2, 2", in, out, orders)
	}
}

// TestAHandlersSessionIsItsOwn has a handler change its session, by each way to execute a
// statement, in a transaction that is completed or rolled back. The next handlers meet nothing of
// it.
func TestAHandlersSessionIsItsOwn(t *testing.T) {
	t.Parallel()
	const untouched = "false|0|0|f"
	state := func(ctx context.Context, tx pgx.Tx) (state string, err error) {
		err = tx.QueryRow(ctx, `SELECT (current_setting('search_path') LIKE '%elsewhere%')::text || '|' ||
			(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) || '|' ||
			(SELECT count(*) FROM pg_listening_channels()) || '|' || (to_regclass('pg_temp.left') IS NOT NULL)::text`).Scan(&state)
		return strings.NewReplacer("|false", "|f", "|true", "|t").Replace(state), err
	}
	for _, pool := range []string{"URL", "a caller's pool"} {
		t.Run(pool, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "in")
			log := &lockedText{}
			tr := Transport{URL: w.url, Schema: w.schema, MaxTx: 1}
			if pool != "URL" {
				tr = Transport{Pool: poolOf(t, w.url, 4, nil), Schema: w.schema, MaxTx: 1}
			}
			c, err := tr.Open(t.Context(), transport.Env{Endpoint: w.schema, Instance: "one", Logger: slog.New(slog.NewTextHandler(log, nil))})
			ok(t, err)
			t.Cleanup(func() { ok(t, c.Close()) })
			r := receiver(t, c, "in")
			for _, statement := range []string{
				"SET search_path = elsewhere, public", "SELECT set_config('search_path', 'elsewhere', false)", "SELECT pg_advisory_lock(4711)",
				"LISTEN elsewhere", "CREATE TEMP TABLE \"left\" (a int)",
			} {
				for way, execute := range map[string]func(ctx context.Context, tx pgx.Tx) error{
					"exec": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, statement); return err },
					"later": func(ctx context.Context, tx pgx.Tx) error {
						_, err := tx.Exec(ctx, "SELECT 1")
						ok(t, err)
						rows, err := tx.Query(ctx, statement)
						ok(t, err)
						rows.Close()
						return rows.Err()
					},
					"batch": func(ctx context.Context, tx pgx.Tx) error {
						var b pgx.Batch
						b.Queue(statement)
						return tx.SendBatch(ctx, &b).Close()
					},
					"savepoint": func(ctx context.Context, tx pgx.Tx) error {
						return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
							return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, statement); return err })
						})
					},
				} {
					for _, end := range []string{"complete", "rollback"} {
						name := fmt.Sprintf("%s by %s, %s", statement, way, end)
						send(t, c, to("in", msg("1")))
						d := receive(t, r, 1)[0]
						tx, user := begun(t, d)
						ok(t, execute(t.Context(), user))
						if end == "complete" {
							ok(t, tx.Complete(t.Context(), nil))
						} else {
							ok(t, tx.Rollback(t.Context()))
							ok(t, d.Complete(t.Context()))
						}
						send(t, c, to("in", msg("2")))
						tx, user = begun(t, receive(t, r, 1)[0])
						got, err := state(t.Context(), user)
						if err != nil || got != untouched {
							t.Errorf("%s: the next session is %q, %v", name, got, err)
						}
						ok(t, tx.Complete(t.Context(), nil))
					}
				}
			}
			if n := strings.Count(log.String(), "a handler's statement leaves"); n < 5 || n > 50 || !strings.Contains(log.String(), "function=") {
				t.Errorf("the log names %d functions:\n%s", n, log)
			}
		})
	}
}

// lockedText is a log that may be read while it is written.
type lockedText struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
