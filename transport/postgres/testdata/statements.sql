-- claim
WITH due AS MATERIALIZED (
	SELECT ctid, visible_at, seq, octet_length(headers) AS headers, coalesce(octet_length(body), 0) AS body FROM "app"."in"
	WHERE (visible_at, seq) > ($5::timestamptz, $6::bigint) AND visible_at <= now()
	ORDER BY visible_at, seq LIMIT $1 FOR UPDATE SKIP LOCKED
), fit AS MATERIALIZED (
	SELECT ctid, visible_at, seq FROM (
		SELECT ctid, visible_at, seq, sum(headers) OVER sofar + sum(body) OVER sofar AS total, headers::bigint + body AS size
		FROM due WINDOW sofar AS (ROWS UNBOUNDED PRECEDING)) AS summed
	WHERE total <= $7::bigint OR total = size
), got AS (
	UPDATE "app"."in" SET delivery_count = delivery_count + 1,
		visible_at = now() + $2::bigint * interval '1 microsecond', lease_id = $3, lease_owner = $4
	WHERE ctid = ANY (ARRAY(SELECT ctid FROM fit))
	RETURNING seq, id::text AS id, headers, body, delivery_count, coalesce(expires <= now() AT TIME ZONE 'UTC', false) AS expired
)
SELECT 0::bigint AS seq, (extract(epoch FROM greatest(reached.visible_at, timestamptz 'epoch')) * 1000000)::bigint::text AS id, reached.seq::text AS headers, NULL::bytea AS body,
	(extract(epoch FROM clock_timestamp() - now()) * 1000000)::integer AS delivery_count, false AS expired,
	CASE WHEN EXISTS (SELECT FROM fit) THEN -(extract(epoch FROM now()) * 1000000)::bigint ELSE coalesce((extract(epoch FROM (
		SELECT least(visible_at, now() + interval '1 day') FROM "app"."in" WHERE visible_at > now() ORDER BY visible_at, seq LIMIT 1
	) - now()) * 1000000)::bigint, 0) END AS next
FROM (
	SELECT visible_at, seq FROM (
		(SELECT visible_at, seq FROM fit ORDER BY visible_at DESC, seq DESC LIMIT 1)
		UNION ALL SELECT now() - interval '250 milliseconds', 0) AS places
	ORDER BY visible_at, seq LIMIT 1) AS reached
UNION ALL
SELECT seq, id, headers, body, delivery_count, expired, 0 FROM got;

-- renew
UPDATE "app"."in" AS q SET visible_at = now() + $1::bigint * interval '1 microsecond'
FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS r(seq, lease_id, n)
WHERE q.seq = ANY (ARRAY[r.seq]) AND q.lease_id = r.lease_id
	AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END, CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) RETURNING r.n;

-- settle without completing
UPDATE "app"."in" AS q SET visible_at = now() + r.after * interval '1 microsecond',
	delivery_count = greatest(0, q.delivery_count - r.undo), lease_id = NULL, lease_owner = NULL,
	last_error = coalesce(nullif(r.note, ''), q.last_error)
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) WITH ORDINALITY AS r(seq, lease_id, after, undo, note, n)
WHERE q.seq = ANY (ARRAY[r.seq]) AND q.lease_id = r.lease_id
	AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END, CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) RETURNING r.n;

-- make rows visible after the clock was set back
UPDATE "app"."in" SET visible_at = CASE WHEN lease_id IS NULL THEN now()
	ELSE visible_at - $2::bigint * interval '1 microsecond' END
WHERE ctid = ANY (ARRAY(SELECT ctid FROM "app"."in"
	WHERE visible_at > now() AND CASE WHEN lease_id IS NULL THEN visible_at <= $1::timestamptz
		ELSE visible_at > now() + $3::bigint * interval '1 microsecond' END
	ORDER BY visible_at, seq LIMIT 10000 FOR UPDATE SKIP LOCKED));

-- abandon the rows of an owner
UPDATE "app"."in" SET visible_at = now(), lease_id = NULL, lease_owner = NULL
WHERE ctid = ANY (ARRAY(SELECT ctid FROM "app"."in"
	WHERE visible_at > now() AND visible_at <= now() + $2::bigint * interval '1 microsecond' AND lease_owner = $1 FOR UPDATE SKIP LOCKED));

-- abandon the rows of claims
UPDATE "app"."in" SET visible_at = now(), lease_id = NULL, lease_owner = NULL
WHERE ctid = ANY (ARRAY(SELECT ctid FROM "app"."in"
	WHERE visible_at > now() AND visible_at <= now() + $2::bigint * interval '1 microsecond' AND lease_id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED));

-- lock for a transaction that keeps a snapshot
SELECT seq FROM "app"."in" WHERE seq = $1 AND lease_id = $2 AND visible_at >= ANY (ARRAY[timestamptz '-infinity']) AND visible_at >= ANY (ARRAY[timestamptz '-infinity', '-infinity']) FOR UPDATE;

-- cancel
DELETE FROM "app"."in" WHERE seq = $1 AND delivery_count = 0 AND visible_at >= ANY (ARRAY[timestamptz '-infinity']) AND visible_at >= ANY (ARRAY[timestamptz '-infinity', '-infinity']);

-- sweep
DELETE FROM "app"."in" WHERE ctid = ANY (ARRAY(SELECT ctid FROM "app"."in"
	WHERE expires <= now() AT TIME ZONE 'UTC' AND (lease_id IS NULL OR visible_at <= now())
	ORDER BY expires LIMIT 1000 FOR UPDATE SKIP LOCKED));

-- purge
DELETE FROM "app"."in" WHERE ctid = ANY (ARRAY(SELECT ctid FROM "app"."in" WHERE visible_at <= now() FOR UPDATE SKIP LOCKED));

-- send
INSERT INTO "app"."out" (headers, body) SELECT r.headers, r.body FROM unnest($1::text[], $2::bytea[]) AS r(headers, body);

-- send what is timed
INSERT INTO "app"."out" (headers, body, visible_at, expires) SELECT r.headers, r.body, greatest(statement_timestamp(), CASE WHEN r.at = 0 THEN statement_timestamp() + r.after * interval '1 microsecond'
	ELSE timestamptz 'epoch' + r.at * interval '1 microsecond' END), CASE WHEN r.ttl > 0 THEN (greatest(statement_timestamp(), CASE WHEN r.at = 0 THEN statement_timestamp() + r.after * interval '1 microsecond'
	ELSE timestamptz 'epoch' + r.at * interval '1 microsecond' END) + r.ttl * interval '1 microsecond') AT TIME ZONE 'UTC' END FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[]) AS r(headers, body, at, after, ttl);

-- send to a table of NServiceBus's
INSERT INTO "public"."foreign" (id, headers, body, expires) SELECT gen_random_uuid(), r.headers, r.body, CASE WHEN r.ttl > 0 THEN (greatest(statement_timestamp(), CASE WHEN r.at = 0 THEN statement_timestamp() + r.after * interval '1 microsecond'
	ELSE timestamptz 'epoch' + r.at * interval '1 microsecond' END) + r.ttl * interval '1 microsecond') AT TIME ZONE 'UTC' END FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[]) AS r(headers, body, at, after, ttl);

-- take from a table of NServiceBus's, and send to two queues
WITH gone AS (
	DELETE FROM "public"."foreign" WHERE ctid = ANY (ARRAY(SELECT ctid FROM "public"."foreign"
		WHERE seq = $1 AND id::text = $2 FOR UPDATE SKIP LOCKED))
	RETURNING 1::bigint AS n
), out0 AS (INSERT INTO "app"."out" (headers, body) SELECT r.headers, r.body FROM unnest($3::bigint[], $4::text[], $5::bytea[]) AS r(owner, headers, body) WHERE r.owner IN (SELECT n FROM gone)), out1 AS (INSERT INTO "public"."foreign" (id, headers, body, expires) SELECT gen_random_uuid(), r.headers, r.body, CASE WHEN r.ttl > 0 THEN (greatest(statement_timestamp(), CASE WHEN r.at = 0 THEN statement_timestamp() + r.after * interval '1 microsecond'
	ELSE timestamptz 'epoch' + r.at * interval '1 microsecond' END) + r.ttl * interval '1 microsecond') AT TIME ZONE 'UTC' END FROM unnest($6::bigint[], $7::text[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[]) AS r(owner, headers, body, at, after, ttl) WHERE r.owner IN (SELECT n FROM gone)) SELECT n FROM gone;

-- purge a table of NServiceBus's
DELETE FROM "public"."foreign" WHERE ctid = ANY (ARRAY(SELECT ctid FROM "public"."foreign" FOR UPDATE SKIP LOCKED));

-- complete
WITH gone AS (
	DELETE FROM "app"."in" AS q USING unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS r(seq, lease_id, n)
	WHERE q.seq = ANY (ARRAY[r.seq]) AND q.lease_id = r.lease_id
	AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END, CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) RETURNING r.n
) SELECT n FROM gone;

-- complete, and send to two queues
WITH gone AS (
	DELETE FROM "app"."in" AS q USING unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS r(seq, lease_id, n)
	WHERE q.seq = ANY (ARRAY[r.seq]) AND q.lease_id = r.lease_id
	AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END, CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) RETURNING r.n
), out0 AS (INSERT INTO "app"."out" (headers, body) SELECT r.headers, r.body FROM unnest($3::bigint[], $4::text[], $5::bytea[]) AS r(owner, headers, body) WHERE r.owner IN (SELECT n FROM gone)), out1 AS (INSERT INTO "public"."foreign" (id, headers, body, expires) SELECT gen_random_uuid(), r.headers, r.body, CASE WHEN r.ttl > 0 THEN (greatest(statement_timestamp(), CASE WHEN r.at = 0 THEN statement_timestamp() + r.after * interval '1 microsecond'
	ELSE timestamptz 'epoch' + r.at * interval '1 microsecond' END) + r.ttl * interval '1 microsecond') AT TIME ZONE 'UTC' END FROM unnest($6::bigint[], $7::text[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[]) AS r(owner, headers, body, at, after, ttl) WHERE r.owner IN (SELECT n FROM gone)) SELECT n FROM gone;

-- complete in a handler's transaction
WITH gone AS (DELETE FROM "app"."in" WHERE seq = $1 AND lease_id = $2 AND visible_at >= ANY (ARRAY[timestamptz '-infinity']) AND visible_at >= ANY (ARRAY[timestamptz '-infinity', '-infinity']) RETURNING 1) SELECT coalesce((SELECT 1 FROM gone), 1 / (random() * 0)::int);

-- complete in a handler's transaction, and send to two queues
WITH gone AS (DELETE FROM "app"."in" WHERE seq = $1 AND lease_id = $2 AND visible_at >= ANY (ARRAY[timestamptz '-infinity']) AND visible_at >= ANY (ARRAY[timestamptz '-infinity', '-infinity']) RETURNING 1), out0 AS (INSERT INTO "app"."out" (headers, body) VALUES ($3, $4)), out1 AS (INSERT INTO "public"."foreign" (id, headers, body, expires) SELECT gen_random_uuid(), r.headers, r.body, CASE WHEN r.ttl > 0 THEN (greatest(statement_timestamp(), CASE WHEN r.at = 0 THEN statement_timestamp() + r.after * interval '1 microsecond'
	ELSE timestamptz 'epoch' + r.at * interval '1 microsecond' END) + r.ttl * interval '1 microsecond') AT TIME ZONE 'UTC' END FROM unnest($5::text[], $6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[]) AS r(headers, body, at, after, ttl)) SELECT coalesce((SELECT 1 FROM gone), 1 / (random() * 0)::int);

-- complete with keys
WITH held AS MATERIALIZED (
	SELECT q.ctid AS at, r.n, r.key::uuid AS key, r.sum::int AS sum FROM "app"."in" AS q,
		unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[]) WITH ORDINALITY AS r(seq, lease_id, key, sum, n)
	WHERE q.seq = ANY (ARRAY[r.seq]) AND q.lease_id = r.lease_id
	AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) AND q.visible_at >= ANY (ARRAY[CASE WHEN r.n > 0 THEN timestamptz '-infinity' END, CASE WHEN r.n > 0 THEN timestamptz '-infinity' END]) FOR UPDATE OF q
), new AS (INSERT INTO "app"."in.handled" (key, sum) SELECT key, sum FROM held ORDER BY key ON CONFLICT DO NOTHING RETURNING key), gone AS (SELECT at, n FROM held WHERE (key IN (SELECT key FROM new)) IS TRUE), deleted AS (
	DELETE FROM "app"."in" WHERE ctid = ANY (ARRAY(SELECT at FROM gone))
), out0 AS (INSERT INTO "app"."out" (headers, body) SELECT r.headers, r.body FROM unnest($5::bigint[], $6::text[], $7::bytea[]) AS r(owner, headers, body) WHERE r.owner IN (SELECT n FROM gone)) SELECT n, n IN (SELECT n FROM gone) FROM held;

-- complete in a handler's transaction with a key
WITH gone AS (DELETE FROM "app"."in" WHERE seq = $1 AND lease_id = $2 AND visible_at >= ANY (ARRAY[timestamptz '-infinity']) AND visible_at >= ANY (ARRAY[timestamptz '-infinity', '-infinity']) RETURNING 1), new AS (INSERT INTO "app"."in.handled" (key, sum) VALUES ($3::uuid, $4::int)), out0 AS (INSERT INTO "app"."out" (headers, body) VALUES ($5, $6)) SELECT coalesce((SELECT 1 FROM gone), 1 / (random() * 0)::int);

-- record keys
WITH r AS MATERIALIZED (
	SELECT key::uuid AS key, sum::int AS sum, n FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS r(key, sum, n)
), new AS (INSERT INTO "app"."in.handled" (key, sum) SELECT key, sum FROM r ORDER BY key ON CONFLICT DO NOTHING RETURNING key), gone AS (SELECT r.n FROM r JOIN new USING (key)), out0 AS (INSERT INTO "app"."out" (headers, body) SELECT r.headers, r.body FROM unnest($3::bigint[], $4::text[], $5::bytea[]) AS r(owner, headers, body) WHERE r.owner IN (SELECT n FROM gone)) SELECT n, 0::bigint FROM gone;

-- record keys, and insert rows with leases
WITH r AS MATERIALIZED (
	SELECT key::uuid AS key, sum::int AS sum, n FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS r(key, sum, n)
), new AS (INSERT INTO "app"."in.handled" (key, sum) SELECT key, sum FROM r ORDER BY key ON CONFLICT DO NOTHING RETURNING key), gone AS (SELECT r.n FROM r JOIN new USING (key)), out0 AS (INSERT INTO "app"."out" (headers, body, visible_at, delivery_count, lease_id, lease_owner) SELECT r.headers, r.body, statement_timestamp() + $7::bigint * interval '1 microsecond', 1, r.lease, $8::text FROM unnest($3::bigint[], $4::text[], $5::bytea[], $6::bigint[]) AS r(owner, headers, body, lease) WHERE r.owner IN (SELECT n FROM gone) RETURNING seq, lease_id) SELECT n, 0::bigint FROM gone UNION ALL SELECT seq, lease_id FROM out0;

-- record a key in a handler's transaction
INSERT INTO "app"."in.handled" (key, sum) VALUES ($1::uuid, $2::int);

-- send in a handler's transaction
INSERT INTO "app"."out" (headers, body) VALUES ($1, $2);

-- send in a handler's transaction, with a lease
INSERT INTO "app"."out" (headers, body, visible_at, delivery_count, lease_id, lease_owner) VALUES ($1, $2, statement_timestamp() + $4::bigint * interval '1 microsecond', 1, $3::bigint, $5::text) RETURNING seq, lease_id;

-- look for keys
SELECT r.n, i.sum FROM unnest($1::text[]) WITH ORDINALITY AS r(key, n),
	LATERAL (SELECT sum FROM "app"."in.handled" WHERE key = r.key::uuid OFFSET 0) AS i;

-- remove old keys
WITH gone AS (
	DELETE FROM "app"."in.handled" WHERE ctid = ANY (ARRAY(SELECT ctid FROM "app"."in.handled"
		WHERE at >= timestamptz 'epoch' + $3::bigint * interval '1 microsecond' AND at < now() - $1::bigint * interval '1 microsecond'
		ORDER BY at LIMIT $2::bigint))
	RETURNING at
) SELECT count(*), coalesce((extract(epoch FROM max(at)) * 1000000)::bigint, 0) FROM gone;

-- what is set before a record is loaded
SELECT set_config('holdfast.lock_timeout', current_setting('lock_timeout'), true),
	set_config('holdfast.enable_seqscan', current_setting('enable_seqscan'), true),
	set_config('lock_timeout', '5000', true),
	set_config('enable_seqscan', 'off', true);

-- create a record
INSERT INTO "app"."holdfast_state" (id, kind, key, version, status) VALUES ($1::uuid, $2::text, $3::text, 0, 0)
ON CONFLICT (id) DO NOTHING;

-- lock a record
SELECT id::text, kind, key, version, status, state::text, meta::text,
	(extract(epoch FROM started) * 1000000)::bigint, (extract(epoch FROM changed) * 1000000)::bigint FROM "app"."holdfast_state" WHERE id = $1::uuid FOR UPDATE;

-- what is set after a record was loaded
SELECT set_config('lock_timeout', current_setting('holdfast.lock_timeout'), true),
	set_config('enable_seqscan', current_setting('holdfast.enable_seqscan'), true);

-- save a record
WITH saved AS (
	UPDATE "app"."holdfast_state" SET version = $3::bigint, status = $4::smallint, state = $5::text::json, meta = $6::text::json,
		started = CASE WHEN $3::bigint = 1 THEN clock_timestamp() ELSE started END, changed = clock_timestamp(),
		forget_at = CASE WHEN $4::smallint = 2 THEN clock_timestamp() + $7::bigint * interval '1 microsecond' END
	WHERE id = $1::uuid AND version = $2::bigint RETURNING 1
) SELECT coalesce((SELECT 1 FROM saved), 1 / (random() * 0)::int);

-- remove a record
DELETE FROM "app"."holdfast_state" WHERE id = $1::uuid;

-- remove ended records
DELETE FROM "app"."holdfast_state" WHERE ctid = ANY (ARRAY(SELECT ctid FROM "app"."holdfast_state"
	WHERE forget_at <= now() ORDER BY forget_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED));

-- list records
SELECT id::text, kind, key, version, status, state::text, meta::text,
	(extract(epoch FROM started) * 1000000)::bigint, (extract(epoch FROM changed) * 1000000)::bigint FROM "app"."holdfast_state" WHERE kind = $1::text AND key > $2::text ORDER BY key LIMIT $3::bigint;

-- find a record
SELECT id::text, kind, key, version, status, state::text, meta::text,
	(extract(epoch FROM started) * 1000000)::bigint, (extract(epoch FROM changed) * 1000000)::bigint FROM "app"."holdfast_state" WHERE id = $1::uuid;

-- count records
SELECT count(*) FILTER (WHERE status = 1), count(*) FILTER (WHERE status = 2),
	coalesce((extract(epoch FROM now() - min(changed) FILTER (WHERE status = 1)) * 1000000)::bigint, 0) FROM "app"."holdfast_state" WHERE kind = $1::text;

-- estimate the number of records
SELECT count(*) FILTER (WHERE status = 1), count(*) FILTER (WHERE status = 2),
	coalesce((extract(epoch FROM now() - min(changed) FILTER (WHERE status = 1)) * 1000000)::bigint, 0) FROM "app"."holdfast_state" TABLESAMPLE SYSTEM ($2::float8) WHERE kind = $1::text;

-- what is set before, behind a proxy
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true), set_config('bytea_output', 'hex', true), set_config('datestyle', 'ISO', true);

-- look for the end of callers' transactions
SELECT x, coalesce(txid_status(x) = 'committed', true)
FROM unnest($1::bigint[]) AS x, (SELECT txid_current_snapshot() AS now OFFSET 0) AS s WHERE txid_visible_in_snapshot(x, s.now);

-- look for locks
SELECT EXISTS (SELECT FROM pg_locks AS l
	WHERE l.locktype = 'relation' AND l.relation = to_regclass(q.name)
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
FROM unnest($1::text[]) WITH ORDINALITY AS q(name, n) ORDER BY q.n;

-- look for tables
SELECT to_regclass(q.name) IS NULL FROM unnest($1::text[]) WITH ORDINALITY AS q(name, n) ORDER BY q.n;

-- make rows visible that waited for a lock
UPDATE "app"."in" SET visible_at = least(now(), (SELECT min(visible_at) FROM "app"."in"))
WHERE seq = ANY ($1::bigint[]) AND lease_id IS NULL AND visible_at > now();

-- install
SET LOCAL standard_conforming_strings = on;
DO $do$
BEGIN IF NOT pg_try_advisory_xact_lock(hashtextextended('holdfast install app', 0)) THEN
RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'another installer is at work in schema "app": run this again';
END IF;
END $do$;
SET LOCAL lock_timeout = '10s';
DO $do$
BEGIN IF to_regnamespace('"app"') IS NULL THEN
CREATE SCHEMA "app";
END IF;
END $do$;
DO $do$
BEGIN IF to_regclass('"app"."holdfast_subscriptions"') IS NULL THEN
CREATE TABLE "app"."holdfast_subscriptions" (type text, queue text, PRIMARY KEY (type, queue));
END IF;
END $do$;
DO $do$
BEGIN IF to_regclass('"app"."holdfast_tables"') IS NULL THEN
CREATE TABLE "app"."holdfast_tables" (
	name text PRIMARY KEY,
	version integer NOT NULL,
	swept_at timestamptz NOT NULL DEFAULT now()
);
END IF;
END $do$;
DO $do1$
BEGIN IF to_regclass('"app"."in"') IS NULL THEN
CREATE TABLE "app"."in" (
	seq bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	id uuid NOT NULL DEFAULT gen_random_uuid(),
	expires timestamp,
	headers text NOT NULL,
	body bytea,
	visible_at timestamptz NOT NULL DEFAULT statement_timestamp(),
	delivery_count integer NOT NULL DEFAULT 0,
	lease_id bigint,
	lease_owner text,
	last_error text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);
INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('in', 3)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
CREATE INDEX IF NOT EXISTS "in_visible_at_seq_idx" ON "app"."in" (visible_at, seq);
CREATE INDEX IF NOT EXISTS "in_expires_idx" ON "app"."in" (expires) WHERE expires IS NOT NULL;
ELSIF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped) THEN
	RAISE NOTICE 'queue % is a table of another kind, such as one of NServiceBus: it is left as it is', 'in';
ELSE
	CASE coalesce((SELECT version FROM "app"."holdfast_tables" WHERE name = 'in'),
	(SELECT CASE WHEN atttypid = 'uuid'::regtype THEN 3 ELSE 1 END FROM pg_attribute
		WHERE attrelid = to_regclass('"app"."in"') AND attname = 'id' AND NOT attisdropped), 1)
WHEN 1 THEN
DO $do$
BEGIN IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = '"app"."in"'::regclass AND attname = 'expires_at' AND NOT attisdropped) THEN
	ALTER TABLE "app"."in" ADD COLUMN IF NOT EXISTS expires timestamp;
	UPDATE "app"."in" SET expires = expires_at AT TIME ZONE 'UTC' WHERE expires_at IS NOT NULL AND expires IS NULL;
	ALTER TABLE "app"."in" SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);
END IF;
END $do$;
CREATE INDEX IF NOT EXISTS "in_visible_at_seq_idx" ON "app"."in" (visible_at, seq);
CREATE INDEX IF NOT EXISTS "in_expires_idx" ON "app"."in" (expires) WHERE expires IS NOT NULL;
INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('in', 2)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
WHEN 2, 3 THEN NULL;
WHEN 0 THEN RAISE EXCEPTION '%', 'its table has been taken over from NServiceBus in part: repeat "holdfast endpoint create --adopt", or Install with Adopt';
	ELSE RAISE EXCEPTION 'its table is of version %, this program knows those up to 3: update this program', coalesce((SELECT version FROM "app"."holdfast_tables" WHERE name = 'in'),
	(SELECT CASE WHEN atttypid = 'uuid'::regtype THEN 3 ELSE 1 END FROM pg_attribute
		WHERE attrelid = to_regclass('"app"."in"') AND attname = 'id' AND NOT attisdropped), 1);
	END CASE;
END IF;
END $do1$;
DO $do$
BEGIN IF to_regclass('"app"."holdfast_handled"') IS NULL THEN
CREATE TABLE "app"."holdfast_handled" (
	name text PRIMARY KEY,
	version integer NOT NULL,
	forgotten_at timestamptz NOT NULL DEFAULT now()
);
END IF;
END $do$;
DO $do$
BEGIN IF to_regclass('"app"."in.handled"') IS NULL THEN
CREATE TABLE "app"."in.handled" (
	key uuid PRIMARY KEY,
	at timestamptz NOT NULL DEFAULT now(),
	sum integer NOT NULL
) WITH (autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS "in.handled_at_idx" ON "app"."in.handled" (at);
INSERT INTO "app"."holdfast_handled" (name, version) VALUES ('in.handled', 1)
	ON CONFLICT (name) DO UPDATE SET version = excluded.version;
ELSIF 3 > (SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('"app"."in.handled"') AND attname IN ('key', 'at', 'sum')) THEN
	RAISE EXCEPTION '% is a table of another kind: rename it', '"app"."in.handled"';
ELSIF coalesce((SELECT version FROM "app"."holdfast_handled" WHERE name = 'in.handled'), 0) > 1 THEN
	RAISE EXCEPTION 'the inbox is of version %, this program knows version 1: update this program', (SELECT version FROM "app"."holdfast_handled" WHERE name = 'in.handled');
ELSIF (SELECT version FROM "app"."holdfast_handled" WHERE name = 'in.handled') IS NULL THEN
	INSERT INTO "app"."holdfast_handled" (name, version) VALUES ('in.handled', 1)
	ON CONFLICT (name) DO UPDATE SET version = excluded.version;
END IF;
END $do$;
DO $do$
BEGIN IF to_regclass('"app"."holdfast_handled"') IS NULL THEN
CREATE TABLE "app"."holdfast_handled" (
	name text PRIMARY KEY,
	version integer NOT NULL,
	forgotten_at timestamptz NOT NULL DEFAULT now()
);
END IF;
END $do$;
DO $do$
BEGIN IF to_regclass('"app"."holdfast_state"') IS NULL THEN
CREATE TABLE "app"."holdfast_state" (
	id uuid PRIMARY KEY,
	kind text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	version bigint NOT NULL,
	status smallint NOT NULL,
	state json,
	meta json,
	started timestamptz NOT NULL DEFAULT clock_timestamp(),
	changed timestamptz NOT NULL DEFAULT clock_timestamp(),
	forget_at timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0,
	toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_cost_delay = 0);
CREATE INDEX "holdfast_state_kind_key_idx" ON "app"."holdfast_state" (kind, key);
CREATE INDEX "holdfast_state_forget_at_idx" ON "app"."holdfast_state" (forget_at) WHERE forget_at IS NOT NULL;
INSERT INTO "app"."holdfast_handled" (name, version) VALUES ('holdfast_state', 1)
	ON CONFLICT (name) DO UPDATE SET version = excluded.version;
ELSIF 10 > (SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('"app"."holdfast_state"') AND NOT attisdropped AND attname IN ('id', 'kind', 'key', 'version', 'status', 'state', 'meta', 'started', 'changed', 'forget_at')) THEN
	RAISE EXCEPTION '% is a table of another kind: rename it', '"app"."holdfast_state"';
ELSIF coalesce((SELECT version FROM "app"."holdfast_handled" WHERE name = 'holdfast_state'), 0) > 1 THEN
	RAISE EXCEPTION 'the table of records is of version %, this program knows version 1: update this program', (SELECT version FROM "app"."holdfast_handled" WHERE name = 'holdfast_state');
ELSIF (SELECT version FROM "app"."holdfast_handled" WHERE name = 'holdfast_state') IS NULL THEN
	INSERT INTO "app"."holdfast_handled" (name, version) VALUES ('holdfast_state', 1)
	ON CONFLICT (name) DO UPDATE SET version = excluded.version;
END IF;
END $do$;
;

-- take over
-- For psql, without --single-transaction.
\set ON_ERROR_STOP on
\set AUTOCOMMIT on
SET standard_conforming_strings = on; SET statement_timeout = 0; SET lock_timeout = 0; SET default_transaction_isolation = 'read committed';
DO $do$
BEGIN IF NOT pg_try_advisory_lock(hashtextextended('holdfast install app', 0)) THEN
RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'another installer is at work in schema "app": run this again';
END IF;
END $do$;
DO $do$
BEGIN IF to_regclass('"app"."in"') IS NOT NULL AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped) AND (SELECT string_agg(problem, '; ') FROM (WITH c AS (SELECT * FROM pg_class WHERE oid = to_regclass('"app"."in"')),
a AS (SELECT * FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attnum > 0 AND NOT attisdropped),
wanted (name, types) AS (VALUES
	('id', ARRAY['uuid']), ('expires', ARRAY['timestamp without time zone']), ('headers', ARRAY['text']),
	('body', ARRAY['bytea']), ('seq', ARRAY['integer', 'bigint']))
SELECT problem FROM (
	SELECT CASE relkind WHEN 'r' THEN NULL WHEN 'p' THEN 'it is partitioned' WHEN 'v' THEN 'it is a view'
		WHEN 'm' THEN 'it is a materialized view' WHEN 'f' THEN 'it is a table of another server' ELSE 'it is no table' END AS problem FROM c
	UNION ALL SELECT 'it is unlogged or temporary' FROM c WHERE relpersistence <> 'p'
	UNION ALL SELECT 'it is a partition' FROM c WHERE relispartition
	UNION ALL SELECT 'it is part of an inheritance' FROM c WHERE NOT relispartition AND relkind = 'r'
		AND EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass('"app"."in"') OR inhparent = to_regclass('"app"."in"'))
	UNION ALL SELECT 'it belongs to ' || quote_ident(pg_get_userbyid(relowner)) || ', whose rights this user does not have'
		FROM c WHERE NOT pg_has_role(relowner, 'USAGE')
	UNION ALL SELECT 'this user may not create indexes in the schema ' || relnamespace::regnamespace
		FROM c WHERE NOT has_schema_privilege(relnamespace, 'CREATE')
	UNION ALL SELECT 'it has row security' FROM c WHERE relrowsecurity OR relforcerowsecurity
		OR EXISTS (SELECT FROM pg_policy WHERE polrelid = to_regclass('"app"."in"'))
	UNION ALL SELECT 'it has the trigger ' || quote_ident(tgname) FROM pg_trigger WHERE tgrelid = to_regclass('"app"."in"') AND NOT tgisinternal
	UNION ALL SELECT 'it has the rule ' || quote_ident(rulename) FROM pg_rewrite, c WHERE ev_class = to_regclass('"app"."in"') AND relkind = 'r'
	UNION ALL SELECT 'it has no column ' || name FROM wanted WHERE name NOT IN (SELECT attname FROM a)
	UNION ALL SELECT 'its column ' || name || ' is of type ' || format_type(atttypid, atttypmod) || ', not ' || array_to_string(types, ' or ')
		FROM wanted JOIN a ON attname = name WHERE format_type(atttypid, atttypmod) <> ALL (types)
	UNION ALL SELECT 'its column ' || name || ' is generated' FROM wanted JOIN a ON attname = name WHERE attgenerated <> ''
	UNION ALL SELECT 'its column ' || attname || ' may be null' FROM a WHERE attname IN ('id', 'headers', 'seq') AND NOT attnotnull
	UNION ALL SELECT 'it has the column ' || quote_ident(attname) FROM a WHERE attname NOT IN (SELECT name FROM wanted)
		AND NOT (lower(attname) = 'bodystring' AND attgenerated <> '' AND atttypid = 'text'::regtype)
	UNION ALL SELECT 'its column seq has no sequence' FROM a WHERE attname = 'seq' AND attidentity = ''
		AND NOT EXISTS (SELECT FROM pg_attrdef WHERE adrelid = to_regclass('"app"."in"') AND adnum = attnum AND pg_get_expr(adbin, adrelid) LIKE 'nextval(%')
	UNION ALL SELECT 'its column seq is not unique' FROM a WHERE attname = 'seq' AND NOT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = to_regclass('"app"."in"') AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
	AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = 'seq')
	UNION ALL SELECT 'it has the unique index ' || indexrelid::regclass FROM pg_index WHERE indrelid = to_regclass('"app"."in"') AND indisunique
		AND NOT (indnkeyatts = 1 AND indpred IS NULL AND indexprs IS NULL
			AND EXISTS (SELECT FROM a WHERE attnum = indkey[0] AND attname IN ('id', 'seq')))
	UNION ALL SELECT 'it has the constraint ' || quote_ident(conname) FROM pg_constraint WHERE conrelid = to_regclass('"app"."in"') AND contype NOT IN ('p', 'u', 'n', 't')
	UNION ALL SELECT 'the table ' || conrelid::regclass || ' refers to it' FROM pg_constraint WHERE confrelid = to_regclass('"app"."in"') AND conrelid <> to_regclass('"app"."in"')
) AS p WHERE problem IS NOT NULL) AS p) IS NOT NULL THEN
RAISE EXCEPTION '%', 'its table cannot be taken over, because it is not exactly one of NServiceBus: ' || (SELECT string_agg(problem, '; ') FROM (WITH c AS (SELECT * FROM pg_class WHERE oid = to_regclass('"app"."in"')),
a AS (SELECT * FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attnum > 0 AND NOT attisdropped),
wanted (name, types) AS (VALUES
	('id', ARRAY['uuid']), ('expires', ARRAY['timestamp without time zone']), ('headers', ARRAY['text']),
	('body', ARRAY['bytea']), ('seq', ARRAY['integer', 'bigint']))
SELECT problem FROM (
	SELECT CASE relkind WHEN 'r' THEN NULL WHEN 'p' THEN 'it is partitioned' WHEN 'v' THEN 'it is a view'
		WHEN 'm' THEN 'it is a materialized view' WHEN 'f' THEN 'it is a table of another server' ELSE 'it is no table' END AS problem FROM c
	UNION ALL SELECT 'it is unlogged or temporary' FROM c WHERE relpersistence <> 'p'
	UNION ALL SELECT 'it is a partition' FROM c WHERE relispartition
	UNION ALL SELECT 'it is part of an inheritance' FROM c WHERE NOT relispartition AND relkind = 'r'
		AND EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass('"app"."in"') OR inhparent = to_regclass('"app"."in"'))
	UNION ALL SELECT 'it belongs to ' || quote_ident(pg_get_userbyid(relowner)) || ', whose rights this user does not have'
		FROM c WHERE NOT pg_has_role(relowner, 'USAGE')
	UNION ALL SELECT 'this user may not create indexes in the schema ' || relnamespace::regnamespace
		FROM c WHERE NOT has_schema_privilege(relnamespace, 'CREATE')
	UNION ALL SELECT 'it has row security' FROM c WHERE relrowsecurity OR relforcerowsecurity
		OR EXISTS (SELECT FROM pg_policy WHERE polrelid = to_regclass('"app"."in"'))
	UNION ALL SELECT 'it has the trigger ' || quote_ident(tgname) FROM pg_trigger WHERE tgrelid = to_regclass('"app"."in"') AND NOT tgisinternal
	UNION ALL SELECT 'it has the rule ' || quote_ident(rulename) FROM pg_rewrite, c WHERE ev_class = to_regclass('"app"."in"') AND relkind = 'r'
	UNION ALL SELECT 'it has no column ' || name FROM wanted WHERE name NOT IN (SELECT attname FROM a)
	UNION ALL SELECT 'its column ' || name || ' is of type ' || format_type(atttypid, atttypmod) || ', not ' || array_to_string(types, ' or ')
		FROM wanted JOIN a ON attname = name WHERE format_type(atttypid, atttypmod) <> ALL (types)
	UNION ALL SELECT 'its column ' || name || ' is generated' FROM wanted JOIN a ON attname = name WHERE attgenerated <> ''
	UNION ALL SELECT 'its column ' || attname || ' may be null' FROM a WHERE attname IN ('id', 'headers', 'seq') AND NOT attnotnull
	UNION ALL SELECT 'it has the column ' || quote_ident(attname) FROM a WHERE attname NOT IN (SELECT name FROM wanted)
		AND NOT (lower(attname) = 'bodystring' AND attgenerated <> '' AND atttypid = 'text'::regtype)
	UNION ALL SELECT 'its column seq has no sequence' FROM a WHERE attname = 'seq' AND attidentity = ''
		AND NOT EXISTS (SELECT FROM pg_attrdef WHERE adrelid = to_regclass('"app"."in"') AND adnum = attnum AND pg_get_expr(adbin, adrelid) LIKE 'nextval(%')
	UNION ALL SELECT 'its column seq is not unique' FROM a WHERE attname = 'seq' AND NOT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = to_regclass('"app"."in"') AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
	AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = 'seq')
	UNION ALL SELECT 'it has the unique index ' || indexrelid::regclass FROM pg_index WHERE indrelid = to_regclass('"app"."in"') AND indisunique
		AND NOT (indnkeyatts = 1 AND indpred IS NULL AND indexprs IS NULL
			AND EXISTS (SELECT FROM a WHERE attnum = indkey[0] AND attname IN ('id', 'seq')))
	UNION ALL SELECT 'it has the constraint ' || quote_ident(conname) FROM pg_constraint WHERE conrelid = to_regclass('"app"."in"') AND contype NOT IN ('p', 'u', 'n', 't')
	UNION ALL SELECT 'the table ' || conrelid::regclass || ' refers to it' FROM pg_constraint WHERE confrelid = to_regclass('"app"."in"') AND conrelid <> to_regclass('"app"."in"')
) AS p WHERE problem IS NOT NULL) AS p);
END IF;
END $do$;
BEGIN;
SET LOCAL standard_conforming_strings = on;
DO $do$
BEGIN IF NOT pg_try_advisory_xact_lock(hashtextextended('holdfast install app', 0)) THEN
RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'another installer is at work in schema "app": run this again';
END IF;
END $do$;
SET LOCAL lock_timeout = '10s';
DO $do$
BEGIN IF to_regnamespace('"app"') IS NULL THEN
CREATE SCHEMA "app";
END IF;
END $do$;
DO $do$
BEGIN IF to_regclass('"app"."holdfast_subscriptions"') IS NULL THEN
CREATE TABLE "app"."holdfast_subscriptions" (type text, queue text, PRIMARY KEY (type, queue));
END IF;
END $do$;
DO $do$
BEGIN IF to_regclass('"app"."holdfast_tables"') IS NULL THEN
CREATE TABLE "app"."holdfast_tables" (
	name text PRIMARY KEY,
	version integer NOT NULL,
	swept_at timestamptz NOT NULL DEFAULT now()
);
END IF;
END $do$;
DO $do1$
BEGIN IF to_regclass('"app"."in"') IS NULL THEN
CREATE TABLE "app"."in" (
	seq bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	id uuid NOT NULL DEFAULT gen_random_uuid(),
	expires timestamp,
	headers text NOT NULL,
	body bytea,
	visible_at timestamptz NOT NULL DEFAULT statement_timestamp(),
	delivery_count integer NOT NULL DEFAULT 0,
	lease_id bigint,
	lease_owner text,
	last_error text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);
INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('in', 3)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
CREATE INDEX IF NOT EXISTS "in_visible_at_seq_idx" ON "app"."in" (visible_at, seq);
CREATE INDEX IF NOT EXISTS "in_expires_idx" ON "app"."in" (expires) WHERE expires IS NOT NULL;
ELSIF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped) THEN
	RAISE NOTICE 'queue % is a table of another kind, such as one of NServiceBus: it is left as it is', 'in';
ELSE
	CASE coalesce((SELECT version FROM "app"."holdfast_tables" WHERE name = 'in'),
	(SELECT CASE WHEN atttypid = 'uuid'::regtype THEN 3 ELSE 1 END FROM pg_attribute
		WHERE attrelid = to_regclass('"app"."in"') AND attname = 'id' AND NOT attisdropped), 1)
WHEN 1 THEN
DO $do$
BEGIN IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = '"app"."in"'::regclass AND attname = 'expires_at' AND NOT attisdropped) THEN
	ALTER TABLE "app"."in" ADD COLUMN IF NOT EXISTS expires timestamp;
	UPDATE "app"."in" SET expires = expires_at AT TIME ZONE 'UTC' WHERE expires_at IS NOT NULL AND expires IS NULL;
	ALTER TABLE "app"."in" SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);
END IF;
END $do$;
CREATE INDEX IF NOT EXISTS "in_visible_at_seq_idx" ON "app"."in" (visible_at, seq);
CREATE INDEX IF NOT EXISTS "in_expires_idx" ON "app"."in" (expires) WHERE expires IS NOT NULL;
INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('in', 2)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
WHEN 2, 3 THEN NULL;
WHEN 0 THEN RAISE EXCEPTION '%', 'its table has been taken over from NServiceBus in part: repeat "holdfast endpoint create --adopt", or Install with Adopt';
	ELSE RAISE EXCEPTION 'its table is of version %, this program knows those up to 3: update this program', coalesce((SELECT version FROM "app"."holdfast_tables" WHERE name = 'in'),
	(SELECT CASE WHEN atttypid = 'uuid'::regtype THEN 3 ELSE 1 END FROM pg_attribute
		WHERE attrelid = to_regclass('"app"."in"') AND attname = 'id' AND NOT attisdropped), 1);
	END CASE;
END IF;
END $do1$;
DO $do1$
BEGIN IF to_regclass('"app"."error"') IS NULL THEN
CREATE TABLE "app"."error" (
	seq bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	id uuid NOT NULL DEFAULT gen_random_uuid(),
	expires timestamp,
	headers text NOT NULL,
	body bytea,
	visible_at timestamptz NOT NULL DEFAULT statement_timestamp(),
	delivery_count integer NOT NULL DEFAULT 0,
	lease_id bigint,
	lease_owner text,
	last_error text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);
INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('error', 3)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
CREATE INDEX IF NOT EXISTS "error_visible_at_seq_idx" ON "app"."error" (visible_at, seq);
CREATE INDEX IF NOT EXISTS "error_expires_idx" ON "app"."error" (expires) WHERE expires IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS "error_id_key" ON "app"."error" (id);
ELSIF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'lease_id' AND NOT attisdropped) THEN
	RAISE NOTICE 'queue % is a table of another kind, such as one of NServiceBus: it is left as it is', 'error';
ELSE
	CASE coalesce((SELECT version FROM "app"."holdfast_tables" WHERE name = 'error'),
	(SELECT CASE WHEN atttypid = 'uuid'::regtype THEN 3 ELSE 1 END FROM pg_attribute
		WHERE attrelid = to_regclass('"app"."error"') AND attname = 'id' AND NOT attisdropped), 1)
WHEN 1 THEN
DO $do$
BEGIN IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = '"app"."error"'::regclass AND attname = 'expires_at' AND NOT attisdropped) THEN
	ALTER TABLE "app"."error" ADD COLUMN IF NOT EXISTS expires timestamp;
	UPDATE "app"."error" SET expires = expires_at AT TIME ZONE 'UTC' WHERE expires_at IS NOT NULL AND expires IS NULL;
	ALTER TABLE "app"."error" SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);
END IF;
END $do$;
CREATE INDEX IF NOT EXISTS "error_visible_at_seq_idx" ON "app"."error" (visible_at, seq);
CREATE INDEX IF NOT EXISTS "error_expires_idx" ON "app"."error" (expires) WHERE expires IS NOT NULL;
INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('error', 2)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
WHEN 2, 3 THEN NULL;
WHEN 0 THEN RAISE EXCEPTION '%', 'its table has been taken over from NServiceBus in part: repeat "holdfast endpoint create --adopt", or Install with Adopt';
	ELSE RAISE EXCEPTION 'its table is of version %, this program knows those up to 3: update this program', coalesce((SELECT version FROM "app"."holdfast_tables" WHERE name = 'error'),
	(SELECT CASE WHEN atttypid = 'uuid'::regtype THEN 3 ELSE 1 END FROM pg_attribute
		WHERE attrelid = to_regclass('"app"."error"') AND attname = 'id' AND NOT attisdropped), 1);
	END CASE;
END IF;
END $do1$;
COMMIT;
DO $do$
BEGIN DECLARE
	said timestamptz := clock_timestamp() - interval '4 seconds';
	pause double precision := 0.05;
	refused boolean := true;
BEGIN
	WHILE refused AND (NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped)) LOOP
		refused := false;
		BEGIN
			PERFORM set_config('lock_timeout', '50ms', true);
			ALTER TABLE "app"."in" ADD COLUMN visible_at timestamptz NOT NULL DEFAULT statement_timestamp(),
	ADD COLUMN delivery_count integer NOT NULL DEFAULT 0, ADD COLUMN lease_id bigint, ADD COLUMN lease_owner text,
	ADD COLUMN last_error text, ALTER COLUMN id SET DEFAULT gen_random_uuid();
			INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('in', 0)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			refused := true;
		END;
		COMMIT;
		IF refused THEN
			IF clock_timestamp() - said >= interval '5 seconds' THEN
				said := clock_timestamp();
				RAISE WARNING 'queue %: adding columns waits for a lock%', 'in', coalesce((SELECT ' of ' || string_agg(format('process %s (%s of %s)', a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, 'another user')), ', ') FROM pg_stat_activity AS a
				WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.granted AND l.relation = to_regclass('"app"."in"')
				AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))), '');
			END IF;
			pause := least(1.5 * pause, 1);
			PERFORM pg_sleep(pause * (0.5 + random() / 2));
			COMMIT;
		END IF;
	END LOOP;
END;
END $do$;
DO $do$
BEGIN IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'id' AND NOT attisdropped AND atttypid = 'text'::regtype) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped) THEN
RAISE WARNING 'queue %: its table (%) is rewritten for ids of type uuid, and is locked meanwhile; programs of an earlier version cannot use it afterwards: stop them', 'in', pg_size_pretty(pg_total_relation_size(to_regclass('"app"."in"')));
END IF;
END $do$;
DO $do$
BEGIN DECLARE
	said timestamptz := clock_timestamp() - interval '4 seconds';
	pause double precision := 0.05;
	refused boolean := true;
BEGIN
	WHILE refused AND (EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'id' AND NOT attisdropped AND atttypid = 'text'::regtype) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped)) LOOP
		refused := false;
		BEGIN
			PERFORM set_config('lock_timeout', '50ms', true);
			ALTER TABLE "app"."in" ALTER COLUMN id DROP DEFAULT,
				ALTER COLUMN id TYPE uuid USING CASE WHEN id ~* '^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$' THEN id::uuid ELSE gen_random_uuid() END,
				ALTER COLUMN id SET DEFAULT gen_random_uuid();
			INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('in', 3)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			refused := true;
		END;
		COMMIT;
		IF refused THEN
			IF clock_timestamp() - said >= interval '5 seconds' THEN
				said := clock_timestamp();
				RAISE WARNING 'queue %: changing the type of id waits for a lock%', 'in', coalesce((SELECT ' of ' || string_agg(format('process %s (%s of %s)', a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, 'another user')), ', ') FROM pg_stat_activity AS a
				WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.granted AND l.relation = to_regclass('"app"."in"')
				AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))), '');
			END IF;
			pause := least(1.5 * pause, 1);
			PERFORM pg_sleep(pause * (0.5 + random() / 2));
			COMMIT;
		END IF;
	END LOOP;
END;
END $do$;
DO $do$
BEGIN DECLARE
	said timestamptz := clock_timestamp() - interval '4 seconds';
	pause double precision := 0.05;
	refused boolean := true;
BEGIN
	WHILE refused AND ((EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'seq' AND attidentity = '')) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'id' AND NOT attisdropped AND atttypid = 'uuid'::regtype) AND NOT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = to_regclass('"app"."in"') AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
	AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = 'id') AND EXISTS (SELECT FROM "app"."in" GROUP BY id HAVING count(*) > 1)) LOOP
		refused := false;
		BEGIN
			PERFORM set_config('lock_timeout', '50ms', true);
			UPDATE "app"."in" SET id = gen_random_uuid() WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM (SELECT ctid, row_number() OVER (PARTITION BY id ORDER BY seq) AS n FROM "app"."in") AS r WHERE n > 1));
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			refused := true;
		END;
		COMMIT;
		IF refused THEN
			IF clock_timestamp() - said >= interval '5 seconds' THEN
				said := clock_timestamp();
				RAISE WARNING 'queue %: giving rows ids of their own waits for a lock%', 'in', coalesce((SELECT ' of ' || string_agg(format('process %s (%s of %s)', a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, 'another user')), ', ') FROM pg_stat_activity AS a
				WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.granted AND l.relation = to_regclass('"app"."in"')
				AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))), '');
			END IF;
			pause := least(1.5 * pause, 1);
			PERFORM pg_sleep(pause * (0.5 + random() / 2));
			COMMIT;
		END IF;
	END LOOP;
END;
END $do$;
SELECT 'DROP INDEX CONCURRENTLY ' || indexrelid::regclass FROM pg_index
WHERE indrelid = to_regclass('"app"."in"') AND NOT indisvalid
AND indexrelid IN (to_regclass('"app"."in_visible_at_seq_idx"'), to_regclass('"app"."in_expires_idx"'), to_regclass('"app"."in_id_key"'))
\gexec
SELECT 'CREATE INDEX CONCURRENTLY "in_visible_at_seq_idx" ON "app"."in" (visible_at, seq)' WHERE EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped) AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = to_regclass('"app"."in"') AND indexrelid = to_regclass('"app"."in_visible_at_seq_idx"') AND indisvalid)
\gexec
SELECT 'CREATE INDEX CONCURRENTLY "in_expires_idx" ON "app"."in" (expires) WHERE expires IS NOT NULL' WHERE EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped) AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = to_regclass('"app"."in"') AND indexrelid = to_regclass('"app"."in_expires_idx"') AND indisvalid)
\gexec
SELECT 'CREATE UNIQUE INDEX CONCURRENTLY "in_id_key" ON "app"."in" (id)' WHERE (EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'lease_id' AND NOT attisdropped) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'seq' AND attidentity = '')) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."in"') AND attname = 'id' AND NOT attisdropped AND atttypid = 'uuid'::regtype) AND NOT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = to_regclass('"app"."in"') AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
	AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = 'id')
\gexec
DO $do$
BEGIN DECLARE
	said timestamptz := clock_timestamp() - interval '4 seconds';
	pause double precision := 0.05;
	refused boolean := true;
BEGIN
	WHILE refused AND (coalesce((SELECT version FROM "app"."holdfast_tables" WHERE name = 'in'),
	(SELECT CASE WHEN atttypid = 'uuid'::regtype THEN 3 ELSE 1 END FROM pg_attribute
		WHERE attrelid = to_regclass('"app"."in"') AND attname = 'id' AND NOT attisdropped), 1) = 0) LOOP
		refused := false;
		BEGIN
			PERFORM set_config('lock_timeout', '50ms', true);
			ALTER TABLE "app"."in" SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);
			INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('in', 3)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			refused := true;
		END;
		COMMIT;
		IF refused THEN
			IF clock_timestamp() - said >= interval '5 seconds' THEN
				said := clock_timestamp();
				RAISE WARNING 'queue %: setting storage parameters waits for a lock%', 'in', coalesce((SELECT ' of ' || string_agg(format('process %s (%s of %s)', a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, 'another user')), ', ') FROM pg_stat_activity AS a
				WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.granted AND l.relation = to_regclass('"app"."in"')
				AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))), '');
			END IF;
			pause := least(1.5 * pause, 1);
			PERFORM pg_sleep(pause * (0.5 + random() / 2));
			COMMIT;
		END IF;
	END LOOP;
END;
END $do$;
DO $do$
BEGIN IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'id' AND NOT attisdropped AND atttypid = 'text'::regtype) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'lease_id' AND NOT attisdropped) THEN
RAISE WARNING 'queue %: its table (%) is rewritten for ids of type uuid, and is locked meanwhile; programs of an earlier version cannot use it afterwards: stop them', 'error', pg_size_pretty(pg_total_relation_size(to_regclass('"app"."error"')));
END IF;
END $do$;
DO $do$
BEGIN DECLARE
	said timestamptz := clock_timestamp() - interval '4 seconds';
	pause double precision := 0.05;
	refused boolean := true;
BEGIN
	WHILE refused AND (EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'id' AND NOT attisdropped AND atttypid = 'text'::regtype) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'lease_id' AND NOT attisdropped)) LOOP
		refused := false;
		BEGIN
			PERFORM set_config('lock_timeout', '50ms', true);
			ALTER TABLE "app"."error" ALTER COLUMN id DROP DEFAULT,
				ALTER COLUMN id TYPE uuid USING CASE WHEN id ~* '^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$' THEN id::uuid ELSE gen_random_uuid() END,
				ALTER COLUMN id SET DEFAULT gen_random_uuid();
			INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('error', 3)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			refused := true;
		END;
		COMMIT;
		IF refused THEN
			IF clock_timestamp() - said >= interval '5 seconds' THEN
				said := clock_timestamp();
				RAISE WARNING 'queue %: changing the type of id waits for a lock%', 'error', coalesce((SELECT ' of ' || string_agg(format('process %s (%s of %s)', a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, 'another user')), ', ') FROM pg_stat_activity AS a
				WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.granted AND l.relation = to_regclass('"app"."error"')
				AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))), '');
			END IF;
			pause := least(1.5 * pause, 1);
			PERFORM pg_sleep(pause * (0.5 + random() / 2));
			COMMIT;
		END IF;
	END LOOP;
END;
END $do$;
DO $do$
BEGIN DECLARE
	said timestamptz := clock_timestamp() - interval '4 seconds';
	pause double precision := 0.05;
	refused boolean := true;
BEGIN
	WHILE refused AND (EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'lease_id' AND NOT attisdropped) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'id' AND NOT attisdropped AND atttypid = 'uuid'::regtype) AND NOT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = to_regclass('"app"."error"') AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
	AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = 'id') AND EXISTS (SELECT FROM "app"."error" GROUP BY id HAVING count(*) > 1)) LOOP
		refused := false;
		BEGIN
			PERFORM set_config('lock_timeout', '50ms', true);
			UPDATE "app"."error" SET id = gen_random_uuid() WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM (SELECT ctid, row_number() OVER (PARTITION BY id ORDER BY seq) AS n FROM "app"."error") AS r WHERE n > 1));
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			refused := true;
		END;
		COMMIT;
		IF refused THEN
			IF clock_timestamp() - said >= interval '5 seconds' THEN
				said := clock_timestamp();
				RAISE WARNING 'queue %: giving rows ids of their own waits for a lock%', 'error', coalesce((SELECT ' of ' || string_agg(format('process %s (%s of %s)', a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, 'another user')), ', ') FROM pg_stat_activity AS a
				WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.granted AND l.relation = to_regclass('"app"."error"')
				AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))), '');
			END IF;
			pause := least(1.5 * pause, 1);
			PERFORM pg_sleep(pause * (0.5 + random() / 2));
			COMMIT;
		END IF;
	END LOOP;
END;
END $do$;
SELECT 'DROP INDEX CONCURRENTLY ' || indexrelid::regclass FROM pg_index
WHERE indrelid = to_regclass('"app"."error"') AND NOT indisvalid
AND indexrelid IN (to_regclass('"app"."error_visible_at_seq_idx"'), to_regclass('"app"."error_expires_idx"'), to_regclass('"app"."error_id_key"'))
\gexec
SELECT 'CREATE INDEX CONCURRENTLY "error_visible_at_seq_idx" ON "app"."error" (visible_at, seq)' WHERE EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'lease_id' AND NOT attisdropped) AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = to_regclass('"app"."error"') AND indexrelid = to_regclass('"app"."error_visible_at_seq_idx"') AND indisvalid)
\gexec
SELECT 'CREATE INDEX CONCURRENTLY "error_expires_idx" ON "app"."error" (expires) WHERE expires IS NOT NULL' WHERE EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'lease_id' AND NOT attisdropped) AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = to_regclass('"app"."error"') AND indexrelid = to_regclass('"app"."error_expires_idx"') AND indisvalid)
\gexec
SELECT 'CREATE UNIQUE INDEX CONCURRENTLY "error_id_key" ON "app"."error" (id)' WHERE EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'lease_id' AND NOT attisdropped) AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('"app"."error"') AND attname = 'id' AND NOT attisdropped AND atttypid = 'uuid'::regtype) AND NOT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = to_regclass('"app"."error"') AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
	AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = 'id')
\gexec
DO $do$
BEGIN DECLARE
	said timestamptz := clock_timestamp() - interval '4 seconds';
	pause double precision := 0.05;
	refused boolean := true;
BEGIN
	WHILE refused AND (coalesce((SELECT version FROM "app"."holdfast_tables" WHERE name = 'error'),
	(SELECT CASE WHEN atttypid = 'uuid'::regtype THEN 3 ELSE 1 END FROM pg_attribute
		WHERE attrelid = to_regclass('"app"."error"') AND attname = 'id' AND NOT attisdropped), 1) = 0) LOOP
		refused := false;
		BEGIN
			PERFORM set_config('lock_timeout', '50ms', true);
			ALTER TABLE "app"."error" SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);
			INSERT INTO "app"."holdfast_tables" (name, version) VALUES ('error', 3)
ON CONFLICT (name) DO UPDATE SET version = excluded.version;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			refused := true;
		END;
		COMMIT;
		IF refused THEN
			IF clock_timestamp() - said >= interval '5 seconds' THEN
				said := clock_timestamp();
				RAISE WARNING 'queue %: setting storage parameters waits for a lock%', 'error', coalesce((SELECT ' of ' || string_agg(format('process %s (%s of %s)', a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, 'another user')), ', ') FROM pg_stat_activity AS a
				WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.granted AND l.relation = to_regclass('"app"."error"')
				AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))), '');
			END IF;
			pause := least(1.5 * pause, 1);
			PERFORM pg_sleep(pause * (0.5 + random() / 2));
			COMMIT;
		END IF;
	END LOOP;
END;
END $do$;
SELECT pg_advisory_unlock(hashtextextended('holdfast install app', 0));
;

