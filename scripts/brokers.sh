#!/usr/bin/env bash
# The brokers that the tests run on.
#
#   brokers.sh up       finds or starts them; prints their URLs as shell exports
#   brokers.sh down     stops the brokers that up has started, and no others
#   brokers.sh status   prints which answer
#
# In this order: the broker that HOLDFAST_TEST_AMQP or HOLDFAST_TEST_POSTGRES names; the broker that an earlier up has
# started; the broker on the usual port of this machine, if it lets guest, or user postgres, in (a RabbitMQ only if it
# lets tests create virtual hosts); a new broker from the installed programs, on Debian after their installation; a
# container by compose.yaml. A broker that up starts belongs to this clone: it listens on an unused port of the loopback
# interface, keeps its data apart from those of the system's own server, and is remembered in .tmp/brokers. Other clones
# have their own.
#
# What stands in for Amazon SQS and Azure Service Bus is started by each test process for itself (internal/brokertest);
# up installs the packages that it needs.
#
# HOLDFAST_AMQP_PORT and HOLDFAST_POSTGRES_PORT are the usual ports, HOLDFAST_BROKERS is another folder to remember in,
# and HOLDFAST_TEST_RABBITMQ_BIN a folder with other programs of RabbitMQ than the installed.
set -euo pipefail
scripts=$(dirname "${BASH_SOURCE[0]}")
scripts=$(cd "$scripts" && pwd)
source "$scripts/lib.sh"
source "$scripts/brokers-rabbitmq.sh"
source "$scripts/brokers-postgres.sh"

state=${HOLDFAST_BROKERS:-$PWD/.tmp/brokers}
# shellcheck disable=SC2034 # for the files above
usual_limit=3s # for a broker on the usual port to answer: another program may listen there, and say nothing
patience=120   # seconds for a first start on a slow machine

main() {
	case ${1:-} in
	up) up ;;
	down)
		[[ -d $state ]] || return 0
		lock "$state/lock"
		amqp_down
		postgres_down
		;;
	status)
		prepare
		amqp_find || say "RabbitMQ: none"
		postgres_find || say "PostgreSQL: none"
		;;
	*)
		sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
		exit 2
		;;
	esac
}

# up starts both brokers before it waits for either.
up() {
	local begin=$SECONDS installed
	installed=$(installed_seconds)
	prepare
	amqp_find || true
	postgres_find || true
	install_missing
	[[ -n $amqp_url ]] || amqp_start
	[[ -n $postgres_url ]] || postgres_start
	scripts/node.sh >/dev/null
	[[ -n $amqp_url ]] || amqp_await
	[[ -n $postgres_url ]] || postgres_await
	give HOLDFAST_TEST_AMQP "$amqp_url"
	[[ -z $amqp_control ]] || give HOLDFAST_TEST_RABBITMQCTL "$amqp_control"
	give HOLDFAST_TEST_POSTGRES "$postgres_url"
	say "brokers ready in $((SECONDS - begin)) s; installed in $(($(installed_seconds) - installed)) s"
}

# prepare builds the program that knows whether a broker answers.
prepare() {
	mkdir -p "$state"
	chmod 700 "$state" 2>/dev/null || # it holds a password
		fail "$state belongs to another user: remove it, or name another folder in HOLDFAST_BROKERS"
	lock "$state/lock"
	CGO_ENABLED=0 go build -o "$state/probe" ./scripts/probe
}

# answers prints the first of the URLs that lets us in.
answers() { "$state/probe" "$@" 2>"$state/why"; }

# why says why none of the URLs let us in, or nothing when no program listens.
why() { grep -v 'connection refused' "$state/why" | head -n 1 || true; }

# named checks the broker that the user has named in a variable.
named() { # variable
	answers "${!1}" >/dev/null ||
		fail "the broker of $1 does not let us in ($(head -n 1 "$state/why")): start it, or unset $1"
}

# missing prints the packages without which some tests cannot start a server of their own, also where the shared brokers
# are elsewhere.
missing() {
	rabbitmq_program rabbitmq-server >/dev/null || echo rabbitmq-server
	postgres_program initdb >/dev/null || echo postgresql
	PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || echo pgbouncer
	compgen -G "/usr/lib/*/faketime/libfaketime.so.1" >/dev/null || echo libfaketime
	[[ -e internal/brokertest/node/node_modules/.holdfast ]] || command -v npm >/dev/null || echo npm
}

# install_missing installs all packages at once.
install_missing() {
	local packages
	packages=$(missing | tr '\n' ' ')
	packages=${packages% }
	[[ -n $packages ]] || return 0
	if can_install; then
		# shellcheck disable=SC2086 # words
		install $packages
		packages=$(missing | tr '\n' ' ')
		packages=${packages% }
	fi
	[[ -z $packages ]] || say "not installed: $packages. Tests that need these programs fail;" \
		"install them, or run this as a user who may install packages by apt"
}

# give prints a variable for eval. The URLs that we make have nothing to be quoted, but
# one given by the user may.
give() { printf 'export %s=%q\n' "$1" "$2"; }

without_password() { sed -E 's#(//[^:/@]*):[^@]*@#\1@#' <<<"$1"; }

remember() { printf '%s' "$2" >"$state/$1"; }

recall() { cat "$state/$1" 2>/dev/null; }

# free_port prints an unused port, below those that the system gives to outgoing connections. Another program may take
# the port before the broker does: then the broker ends, and is started with other ports.
free_port() {
	local port
	for _ in {1..100}; do
		port=$((20000 + RANDOM % 12000))
		listens "$port" || { echo "$port" && return; }
	done
	fail "no unused port found on 127.0.0.1"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# --- Processes

# launch starts a server in the folder $PWD that outlives this process and its terminal. The server's number is written
# down by the process that becomes the server, which holds the lock until then: no later up or down overlooks it.
launch() { # name command…
	local name=$1 pid
	shift
	(
		exec >"$state/$name.log" 2>&1 </dev/null
		pid=$BASHPID
		remember "$name.pid" "$pid $(started_at "$pid")"
		! command -v setsid >/dev/null || exec setsid "$@" 9>&-
		exec "$@" 9>&- # macOS
	) &
}

# runs prints the number of a server that was launched, if it still runs. The number may be another process's by now,
# which has started at another time.
runs() { # name
	local pid started
	read -r pid started < <(recall "$1.pid" && echo) || return 1
	[[ -n $started && $(started_at "$pid") == "$started" ]] && echo "$pid"
}

# started_at prints when a process started, or nothing when it has ended.
started_at() { # pid
	local stat
	if [[ -d /proc/self ]]; then
		stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
		read -r -a stat <<<"${stat##*) }" # the name before may hold spaces
		[[ ${stat[0]} == Z ]] || echo "${stat[19]}"
	else
		ps -o lstart= -p "$1" || true
	fi
}

# wait_for waits until a server that was launched answers. It returns 1 when the server has ended.
wait_for() { # server name url
	local since=$SECONDS said=$SECONDS
	until answers -wait 1s "$3" >/dev/null; do
		runs "$2" >/dev/null || return 1
		((SECONDS - since < patience)) ||
			fail "$1 does not answer within $patience s; its log is $state/$2.log, and brokers.sh down stops it"
		((SECONDS - said < 10)) || { said=$SECONDS && say "still waiting for $1 after $((SECONDS - since)) s"; }
	done
}

# restart_until_answers restarts a server that ends: another program may have taken its port.
restart_until_answers() { # server name url-file start
	local attempt
	for attempt in 1 2 3; do
		((attempt == 1)) || "$4"
		! wait_for "$1" "$2" "$(recall "$3")" || return 0
		tail -n 20 "$state/$2.log" >&2
	done
	fail "$1 ends right after its start; its log is $state/$2.log"
}

# stop ends a server that was launched, if it still runs.
stop() { # server name signal
	local pid
	if pid=$(runs "$2"); then
		say "stopping $1"
		kill -s "$3" "$pid"
		for _ in {1..300}; do
			runs "$2" >/dev/null || break
			sleep 0.1
		done
		! runs "$2" >/dev/null || { say "$1 does not stop; killing it" && kill -s KILL "$pid"; }
	fi
	rm -f "$state/$2.pid" "$state/$2.log"
}

# --- Containers

has_docker() { docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; }

# compose works on the containers of this folder alone.
compose() { docker compose --project-name "$(compose_project)" "$@" >&2; }

compose_project() { printf 'holdfast-%s' "$(printf '%s' "$state" | cksum | cut -d ' ' -f 1)"; }

main "$@"
