#!/usr/bin/env bash
# The brokers that the tests run on.
#
#   brokers.sh up       finds or starts them; prints their URLs as shell exports
#   brokers.sh down     stops what up has started, and nothing else
#   brokers.sh status   prints which answer
#
# In this order: the broker that HOLDFAST_TEST_AMQP or HOLDFAST_TEST_POSTGRES names; one that
# answers on the usual port of this machine (a RabbitMQ only if it lets tests create virtual hosts); one of our own from the Debian packages,
# installed if need be; one in a container by compose.yaml. What is started listens on
# the loopback interface only, keeps its data apart from that of the system's own server,
# and is remembered in .tmp/brokers.
#
# What stands in for Amazon SQS and Azure Service Bus is started by each test process for itself (internal/brokertest); up
# sees to the packages that it needs.
#
# HOLDFAST_AMQP_PORT and HOLDFAST_POSTGRES_PORT look and start on other ports, HOLDFAST_BROKERS remembers in
# another folder, and HOLDFAST_TEST_RABBITMQ_BIN is a folder with other programs of RabbitMQ than the installed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

state=${HOLDFAST_BROKERS:-$PWD/.tmp/brokers}
amqp_port=${HOLDFAST_AMQP_PORT:-5672}
postgres_port=${HOLDFAST_POSTGRES_PORT:-5432}
patience=120s # a first start on a slow machine

main() {
	case ${1:-} in
	up)
		prepare
		amqp_up
		postgres_up
		programs
		scripts/node.sh >/dev/null
		;;
	down)
		amqp_down
		postgres_down
		;;
	status)
		prepare
		amqp_running >/dev/null || say "RabbitMQ: none"
		postgres_running >/dev/null || say "PostgreSQL: none"
		;;
	*)
		sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
		exit 2
		;;
	esac
}

# prepare builds the program that knows whether a broker answers.
prepare() {
	mkdir -p "$state"
	chmod 700 "$state" # it holds a password
	CGO_ENABLED=0 go build -o "$state/probe" ./scripts/probe
}

# answers prints the first of the URLs that lets us in.
answers() { "$state/probe" "$@" 2>/dev/null; }

# wait_for waits for a broker that was started, and shows its log when it does not come.
wait_for() { # what log url
	say "waiting for $1, for up to $patience"
	"$state/probe" -wait "$patience" "$3" >/dev/null && return
	[[ ! -r $2 ]] || tail -n 20 "$2" >&2
	fail "$1 was started but does not answer"
}

# programs sees to the servers' programs, of which tests that stop or kill a broker, or pool its connections, start one of
# their own, also where the shared brokers are elsewhere. Without them those tests fail.
programs() {
	can_install || return 0
	rabbitmq_server >/dev/null || install rabbitmq-server
	compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || install postgresql
	PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || install pgbouncer
}

# give prints a variable for eval. The URLs that we make have nothing to be quoted, but
# one given by the user may.
give() { printf 'export %s=%q\n' "$1" "$2"; }

# free_port is the port itself, or another one where that is taken.
free_port() {
	local port=$1
	while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
		port=$((port + 10000))
		((port < 65536)) || fail "no free port found from $1 up"
	done
	echo "$port"
}

remember() { printf '%s' "$2" >"$state/$1"; }

recall() { cat "$state/$1" 2>/dev/null; }

has_docker() { docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; }

compose() { docker compose --project-name holdfast-test "$@" >&2; }

# --- RabbitMQ

amqp_up() {
	if [[ -n ${HOLDFAST_TEST_AMQP:-} ]]; then
		"$state/probe" "$HOLDFAST_TEST_AMQP" >/dev/null || fail "the broker of HOLDFAST_TEST_AMQP does not answer"
		give HOLDFAST_TEST_AMQP "$HOLDFAST_TEST_AMQP"
	elif ! amqp_running; then
		amqp_start
		amqp_running || fail "RabbitMQ does not answer any more"
	fi
}

amqp_running() {
	local url own candidates=()
	own=$(recall amqp.url) && candidates+=("$own")
	# Other programs than the installed are asked for: what runs on the usual port is not of them.
	[[ -n ${HOLDFAST_TEST_RABBITMQ_BIN:-} ]] || candidates+=("amqp://guest:guest@127.0.0.1:$amqp_port/")
	((${#candidates[@]} > 0)) && url=$(answers "${candidates[@]}") || return 1
	if [[ $url != "$own" ]] && ! lets_vhosts; then
		say "RabbitMQ on port $amqp_port lets this user create no virtual hosts, so tests cannot run beside each other on it"
		return 1
	fi
	say "RabbitMQ: $(without_password "$url")"
	give HOLDFAST_TEST_AMQP "$url"
	[[ $url != "$own" || ! -x $state/rabbitmq/rabbitmqctl ]] || give HOLDFAST_TEST_RABBITMQCTL "$state/rabbitmq/rabbitmqctl"
}

# lets_vhosts reports whether tests may create virtual hosts on the broker of the usual port, by rabbitmqctl or by the
# HTTP API. Packages that are tested beside each other need one each.
lets_vhosts() {
	timeout 30 rabbitmqctl --quiet list_vhosts >/dev/null 2>&1 ||
		curl --fail --silent --max-time 5 --user guest:guest http://127.0.0.1:15672/api/vhosts >/dev/null 2>&1
}

amqp_start() {
	if rabbitmq_server >/dev/null; then
		amqp_start_own
	elif can_install; then
		install rabbitmq-server
		# Where there is an init system, the package starts the server itself.
		amqp_running >/dev/null || amqp_start_own
	elif has_docker; then
		compose up --detach --wait rabbitmq
		remember amqp.compose yes
		remember amqp.url "amqp://guest:guest@127.0.0.1:$amqp_port/"
	else
		fail "the tests need a RabbitMQ that takes guest/guest on 127.0.0.1:$amqp_port:" \
			"start one, or name one in HOLDFAST_TEST_AMQP, or start docker, or run this as a user" \
			"who may install packages by apt"
	fi
}

# rabbitmq_server is the server itself: what is on the PATH of a Debian system refuses to
# run for anybody but root and rabbitmq.
rabbitmq_server() {
	local server=${HOLDFAST_TEST_RABBITMQ_BIN:-/usr/lib/rabbitmq/bin}/rabbitmq-server
	if [[ -x $server ]]; then echo "$server"; else command -v rabbitmq-server; fi
}

# amqp_start_own starts a node with its own name, folder and ports.
amqp_start_own() {
	local home=$state/rabbitmq port
	rabbitmq_server >/dev/null || fail "RabbitMQ could not be installed"
	port=$(free_port "$amqp_port")
	mkdir -p "$home"
	free_port 4370 >"$home/epmd" # a port mapper of our own: the system's may be older, or closed to us
	cat >"$home/rabbitmq.conf" <<-END
		listeners.tcp.default = 127.0.0.1:$port
		log.file.level = warning
		# A test machine with a full disk or little memory is to fail loudly, not to block senders.
		disk_free_limit.absolute = 64MB
	END
	say "starting RabbitMQ on 127.0.0.1:$port"
	(
		exec >"$home/output" 2>&1 </dev/null
		umask 077
		allow_files
		cd "$home"
		HOME=$home \
			RABBITMQ_NODENAME=holdfast-$port@localhost \
			RABBITMQ_DIST_PORT="$(free_port 25673)" \
			ERL_EPMD_ADDRESS=127.0.0.1 \
			ERL_EPMD_PORT="$(<epmd)" \
			RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}' \
			RABBITMQ_CONFIG_FILE=$home/rabbitmq.conf \
			RABBITMQ_ADVANCED_CONFIG_FILE=$home/none \
			RABBITMQ_CONF_ENV_FILE=$home/none \
			RABBITMQ_MNESIA_BASE=$home/data \
			RABBITMQ_LOG_BASE=$home/log \
			RABBITMQ_ENABLED_PLUGINS_FILE=$home/plugins \
			RABBITMQ_PID_FILE=$home/pid \
			setsid "$(rabbitmq_server)" &
	)
	control >"$home/rabbitmqctl"
	chmod 700 "$home/rabbitmqctl"
	remember amqp.url "amqp://guest:guest@127.0.0.1:$port/"
	wait_for RabbitMQ "$home/output" "$(recall amqp.url)"
}

# allow_files raises the limit of open files to 16,384 for what this shell starts. A queue has files of its own: with 1,024 a node
# stops to answer at four virtual hosts with delay queues.
allow_files() {
	[[ $(ulimit -n) == unlimited || $(ulimit -n) -ge 16384 ]] || ulimit -n 16384 ||
		say "RabbitMQ may open only $(ulimit -n) files: raise the hard limit (ulimit -Hn) to 16384"
}

# control writes a program that is rabbitmqctl for our node.
control() {
	cat <<-END
		#!/bin/sh
		HOME='$home' ERL_EPMD_PORT=$(<"$home/epmd") RABBITMQ_NODENAME=holdfast-$port@localhost \\
			RABBITMQ_CONF_ENV_FILE='$home/none' exec '$(dirname "$(rabbitmq_server)")/rabbitmqctl' "\$@"
	END
}

amqp_down() {
	if [[ -e $state/amqp.compose ]]; then
		compose rm --stop --force --volumes rabbitmq
	elif [[ -s $state/rabbitmq/pid ]]; then
		stop_process RabbitMQ "$(<"$state/rabbitmq/pid")" "$state/rabbitmq"
		ERL_EPMD_PORT=$(<"$state/rabbitmq/epmd") epmd -kill >/dev/null 2>&1 || true
	fi
	rm -rf "$state/amqp.compose" "$state/amqp.url" "$state/rabbitmq"
}

# stop_process ends a process that we started: one whose command line names its folder, for
# the number may have gone to another one since.
stop_process() { # what pid folder
	tr '\0' ' ' 2>/dev/null <"/proc/$2/cmdline" | grep -qF -- "$3" || return 0
	say "stopping $1"
	kill "$2"
	for _ in {1..60}; do
		kill -0 "$2" 2>/dev/null || return 0
		sleep 0.5
	done
	say "$1 does not stop; killing it"
	kill -9 "$2"
}

# --- PostgreSQL

postgres_up() {
	if [[ -n ${HOLDFAST_TEST_POSTGRES:-} ]]; then
		"$state/probe" "$HOLDFAST_TEST_POSTGRES" >/dev/null || fail "the server of HOLDFAST_TEST_POSTGRES does not answer"
		give HOLDFAST_TEST_POSTGRES "$HOLDFAST_TEST_POSTGRES"
	elif ! postgres_running; then
		postgres_start
		postgres_running || fail "PostgreSQL does not answer any more"
	fi
}

postgres_running() {
	local url own candidates=()
	own=$(recall postgres.url) && candidates+=("$own")
	for user in postgres root; do
		for database in test postgres; do
			candidates+=("postgres://$user@127.0.0.1:$postgres_port/$database?sslmode=disable")
		done
	done
	url=$(answers "${candidates[@]}") || return 1
	say "PostgreSQL: $(without_password "$url")"
	give HOLDFAST_TEST_POSTGRES "$url"
}

postgres_start() {
	if can_install; then
		postgres_installed || install postgresql
		postgres_start_own
	elif has_docker; then
		compose up --detach --wait postgres
		remember postgres.compose yes
		remember postgres.url "postgres://holdfast:holdfast@127.0.0.1:$postgres_port/holdfast?sslmode=disable"
	else
		fail "the tests need a PostgreSQL that lets user postgres in on 127.0.0.1:$postgres_port:" \
			"start one, or name one in HOLDFAST_TEST_POSTGRES, or start docker, or run this as a user" \
			"who may install packages by apt"
	fi
}

# postgres_installed reports whether there is a server that Debian's tools can run.
postgres_installed() {
	command -v pg_createcluster >/dev/null && compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null
}

# postgres_start_own makes a cluster of our own beside those of the system, so that neither
# their data nor their access rules are touched. Its one user may do everything there, as
# user postgres may elsewhere, so it has a password that nobody can guess.
postgres_start_own() {
	local port version password cluster=holdfast
	postgres_installed || fail "PostgreSQL could not be installed"
	port=$(free_port "$postgres_port")
	[[ $port == "$postgres_port" ]] || cluster=holdfast$port # the other one may be in use
	version=$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | cut -d / -f 5 | sort -V | tail -n 1)
	password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
	postgres_drop "$version/$cluster"
	say "starting PostgreSQL $version on 127.0.0.1:$port"
	remember postgres.cluster "$version/$cluster"
	as_root pg_createcluster --port "$port" "$version" "$cluster" -- \
		--auth-local=peer --auth-host=scram-sha-256 </dev/null >"$state/postgres.log" 2>&1 ||
		fail "pg_createcluster: $(<"$state/postgres.log")"
	as_root pg_ctlcluster "$version" "$cluster" start </dev/null >&2
	as_postgres psql --quiet --port "$port" --dbname postgres <<-END >&2
		\set ON_ERROR_STOP on
		CREATE ROLE holdfast LOGIN SUPERUSER PASSWORD '$password';
		CREATE DATABASE holdfast OWNER holdfast;
	END
	remember postgres.url "postgres://holdfast:$password@127.0.0.1:$port/holdfast?sslmode=disable"
	wait_for PostgreSQL "/var/log/postgresql/postgresql-$version-$cluster.log" "$(recall postgres.url)"
}

# as_postgres runs a command as the system's user postgres, in a folder that it may enter.
as_postgres() {
	(
		cd /
		if [[ $(id -u) == 0 ]]; then
			setpriv --reuid postgres --regid postgres --init-groups -- "$@"
		else
			sudo -u postgres "$@"
		fi
	)
}

postgres_down() {
	if [[ -e $state/postgres.compose ]]; then
		compose rm --stop --force --volumes postgres
	elif [[ -e $state/postgres.cluster ]]; then
		say "stopping PostgreSQL"
		postgres_drop "$(recall postgres.cluster)"
	fi
	rm -f "$state/postgres.compose" "$state/postgres.cluster" "$state/postgres.url" "$state/postgres.log"
}

# postgres_drop removes a cluster of ours, if there is one: version/name.
postgres_drop() {
	[[ -d /etc/postgresql/$1 ]] || return 0
	as_root pg_dropcluster --stop "${1%/*}" "${1#*/}" </dev/null >&2
}

without_password() { sed -E 's#(//[^:/@]*):[^@]*@#\1@#' <<<"$1"; }

main "$@"
