# Sourced by brokers.sh: PostgreSQL.
# shellcheck shell=bash disable=SC2034,SC2154 # variables that brokers.sh shares with this file

postgres_port=${HOLDFAST_POSTGRES_PORT:-5432}
postgres_url= # of the server that was found or started

# postgres_find finds a PostgreSQL that answers. A password for the usual port may be in PGPASSWORD or ~/.pgpass.
postgres_find() {
	local candidates=() user database
	if [[ -n ${HOLDFAST_TEST_POSTGRES:-} ]]; then
		named HOLDFAST_TEST_POSTGRES
		postgres_url=$HOLDFAST_TEST_POSTGRES
	elif postgres_answers_own; then
		postgres_url=$(recall postgres.url)
	else
		for user in postgres root; do
			for database in test postgres; do
				candidates+=("postgres://$user@127.0.0.1:$postgres_port/$database?sslmode=disable")
			done
		done
		if ! postgres_url=$(answers -limit "$usual_limit" "${candidates[@]}"); then
			[[ -z $(why) ]] || say "no PostgreSQL for tests on port $postgres_port: $(why). HOLDFAST_TEST_POSTGRES can name one"
			return 1
		fi
	fi
	say "PostgreSQL: $(without_password "$postgres_url")"
}

# postgres_answers_own reports whether the PostgreSQL of an earlier up answers. It may still be starting.
postgres_answers_own() {
	if [[ -e $state/postgres.compose ]]; then
		answers "$(recall postgres.url)" >/dev/null
	else
		runs postgres >/dev/null && wait_for PostgreSQL postgres "$(recall postgres.url)"
	fi
}

# postgres_start starts a PostgreSQL, and does not wait for it.
postgres_start() {
	if postgres_program initdb >/dev/null; then
		postgres_start_own
	elif has_docker; then
		postgres_start_container
	else
		fail "the tests need a PostgreSQL: install postgresql, or name a server in HOLDFAST_TEST_POSTGRES, or start docker," \
			"or run this as a user who may install packages by apt"
	fi
}

postgres_await() {
	[[ -e $state/postgres.compose ]] || restart_until_answers PostgreSQL postgres postgres.url postgres_start_own
	postgres_url=$(recall postgres.url)
	say "PostgreSQL: $(without_password "$postgres_url")"
}

# postgres_program prints the path of a program of the server, which Debian does not put on the PATH.
postgres_program() {
	command -v "$1" || compgen -G "/usr/lib/postgresql/*/bin/$1" | sort -V | tail -n 1 | grep .
}

# postgres_start_own starts a server with its own data, so that neither the data nor the access rules of the system's are
# touched. Its one user may do everything there, so it has a password that nobody can guess. The data are thrown away with the
# server, so nothing is synchronized with the disk.
postgres_start_own() {
	local bin port password folder=$state as=()
	postgres_down
	if [[ $(id -u) == 0 ]]; then
		# The server refuses to run as root, and user postgres may not be able to enter root's folders.
		id postgres >/dev/null 2>&1 || fail "PostgreSQL does not run as root, and there is no user postgres: create the user"
		folder=${TMPDIR:-/tmp}
		as=(setpriv --reuid postgres --regid postgres --init-groups --)
	fi
	bin=$(dirname "$(postgres_program initdb)")
	port=$(free_port)
	password=$(random)
	folder=$folder/holdfast-postgres-$(random)
	remember postgres.folder "$folder"
	mkdir -m 700 "$folder"
	(umask 077 && echo "$password" >"$folder/password")
	[[ $(id -u) != 0 ]] || chown -R postgres: "$folder"
	say "starting PostgreSQL on 127.0.0.1:$port"
	(
		cd "${folder%/*}" || exit
		"${as[@]}" "$bin/initdb" --pgdata="$folder/data" --username=holdfast --auth=scram-sha-256 --pwfile="$folder/password" \
			--encoding=UTF8 --locale=C --no-sync >"$state/initdb.log" 2>&1
	) || fail "initdb of PostgreSQL failed: $(tail -n 1 "$state/initdb.log"); its log is $state/initdb.log"
	remember postgres.url "postgres://holdfast:$password@127.0.0.1:$port/postgres?sslmode=disable"
	(
		cd "${folder%/*}" || exit
		launch postgres "${as[@]}" "$bin/postgres" -D "$folder/data" -p "$port" \
			-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=300 \
			-c fsync=off -c full_page_writes=off
	)
}

random() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

postgres_start_container() {
	local port
	port=$(free_port)
	say "starting PostgreSQL on 127.0.0.1:$port by docker compose"
	remember postgres.compose yes
	remember postgres.url "postgres://holdfast:holdfast@127.0.0.1:$port/holdfast?sslmode=disable"
	HOLDFAST_POSTGRES_PORT=$port compose up --detach --wait postgres ||
		fail "docker compose could not start PostgreSQL: see above"
}

postgres_down() {
	if [[ -e $state/postgres.compose ]]; then
		compose rm --stop --force --volumes postgres || say "the container of PostgreSQL is not removed"
	fi
	stop PostgreSQL postgres INT
	[[ ! -e $state/postgres.folder ]] || rm -rf "$(recall postgres.folder)"
	rm -f "$state/postgres.compose" "$state/postgres.folder" "$state/postgres.url" "$state/initdb.log"
}
