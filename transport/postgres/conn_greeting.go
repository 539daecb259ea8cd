package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"
)

// greeting is what the server says about the database and the session of a new connection. Its
// statements name the schema of each function: a search_path may put functions of others before
// those of the server.
type greeting struct {
	at       database
	level    string // the isolation level at which transactions begin
	encoding string
	path     string // the schemas in which names are looked for, as the text of an array
	role     string
	most     int // the connections that the role may have; -1: not limited
}

const askGreeting = `SELECT pg_catalog.current_database(), ` + askStarted + `, pg_catalog.current_setting('default_transaction_isolation'),
	pg_catalog.current_setting('server_encoding'), pg_catalog.current_schemas(true)::pg_catalog.text, current_user::pg_catalog.text,
	coalesce((SELECT CASE WHEN rolsuper THEN -1 ELSE rolconnlimit END FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) current_user), -1)`

// askShadows finds a function or an operator that the search_path puts before one of the server's
// with the same parameters. Members of extensions do not count: pgcrypto has a gen_random_uuid that
// does the same, and orafce is used with such a search_path.
const askShadows = `WITH before AS (
	SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace AS n
	WHERE pg_catalog.left(n.nspname::pg_catalog.text, 7) OPERATOR(pg_catalog.<>) 'pg_temp' AND pg_catalog.array_position(pg_catalog.current_schemas(true), n.nspname)
		OPERATOR(pg_catalog.<) pg_catalog.array_position(pg_catalog.current_schemas(true), 'pg_catalog'::pg_catalog.name)
), named AS (
	SELECT 'function' AS kind, 'pg_catalog.pg_proc'::pg_catalog.regclass AS class, oid, pronamespace AS home, proname AS name,
		proargtypes::pg_catalog.text AS types FROM pg_catalog.pg_proc
	UNION ALL SELECT 'operator', 'pg_catalog.pg_operator'::pg_catalog.regclass, oid, oprnamespace, oprname, pg_catalog.concat(oprleft, ' ', oprright) FROM pg_catalog.pg_operator
)
SELECT pg_catalog.concat(theirs.kind, ' ', before.nspname, '.', theirs.name) FROM before
JOIN named AS theirs ON theirs.home OPERATOR(pg_catalog.=) before.oid
JOIN named AS own ON own.home OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace AND own.kind OPERATOR(pg_catalog.=) theirs.kind
	AND own.name OPERATOR(pg_catalog.=) theirs.name AND own.types OPERATOR(pg_catalog.=) theirs.types
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d WHERE d.classid OPERATOR(pg_catalog.=) theirs.class
	AND d.objid OPERATOR(pg_catalog.=) theirs.oid AND d.deptype OPERATOR(pg_catalog.=) 'e')
ORDER BY 1 LIMIT 1`

// leastConnections is the number of connections with which an endpoint receives: for claims,
// renewals, writes, notifications and one handler's transaction.
const leastConnections = 5

// greet asks for the greeting, in one round trip, and refuses a database or a session that cannot
// be used.
func (c *connections) greet(ctx context.Context, log *slog.Logger) (g greeting, err error) {
	err = c.writes.QueryRow(ctx, askGreeting, pgx.QueryExecModeSimpleProtocol).
		Scan(&g.at.name, &g.at.started, &g.level, &g.encoding, &g.path, &g.role, &g.most)
	if err != nil {
		return g, err
	}
	if g.encoding != "UTF8" {
		return g, fmt.Errorf("database %q has the encoding %s, which cannot store every message: want UTF8, "+
			"as by CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", g.at.name, g.encoding)
	}
	if g.most >= 0 && g.most < leastConnections {
		log.WarnContext(ctx, "the role may have fewer connections than an endpoint that receives needs: raise its CONNECTION LIMIT",
			slog.String("role", g.role), slog.Int("limit", g.most), slog.Int("least", leastConnections))
	}
	if !strings.HasPrefix(g.path, "{pg_catalog") {
		if err := c.unshadowed(ctx); err != nil {
			return g, err
		}
	}
	if c.pooled {
		err = c.transacts(ctx)
	}
	return g, err
}

// unshadowed fails if the search_path replaces a function or an operator of the server.
func (c *connections) unshadowed(ctx context.Context) error {
	rows, err := c.writes.Query(ctx, askShadows, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return err
	}
	shadows, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(shadows) > 0 {
		err = fmt.Errorf("the search_path of the session replaces functions of the server, such as by the %s: "+
			"put pg_catalog first, or leave it out", shadows[0])
	}
	return err
}

// transacts fails behind a proxy that pools statements, which refuses transactions.
func (c *connections) transacts(ctx context.Context) error {
	tx, err := c.writes.Begin(ctx)
	if err == nil {
		err = tx.Rollback(ctx)
	}
	if err != nil && strings.Contains(err.Error(), "statement pooling") {
		return fmt.Errorf("the proxy pools statements, and messages need transactions: set pool_mode = transaction in pgbouncer (%w)", err)
	}
	return err
}
