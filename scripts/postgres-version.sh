#!/usr/bin/env bash
# Runs a command on the PostgreSQL of another Debian suite, beside the one that is installed.
#
#   postgres-version.sh trixie go test ./transport/postgres
#   postgres-version.sh sid bash      a shell, to try things by hand
#
# The suite is unpacked into .tmp/postgres-SUITE, once, by debootstrap. Its /usr is mounted over ours for the server's
# programs alone. HOLDFAST_TEST_POSTGRES names the server that runs while the command does, and the PATH begins with the
# suite's initdb and postgres, of which tests start servers of their own. It needs Linux and, for debootstrap, root;
# HOLDFAST_DEBIAN_MIRROR is another mirror than Debian's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

suite=${1:-}
if [[ ! $suite =~ ^[a-z]+$ || $# -lt 2 ]]; then
	sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
	exit 2
fi
shift
home=$PWD/.tmp/postgres-$suite

# fetch unpacks the suite. Its rest goes with it: the server needs the C library that it was built with.
fetch() {
	command -v debootstrap >/dev/null || install debootstrap
	say "unpacking postgresql of $suite"
	as_root rm -rf --one-file-system "$home"
	mkdir -p "$home/bin"
	as_root debootstrap --variant=minbase --include=postgresql "$suite" "$home/new" \
		"${HOLDFAST_DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$home/debootstrap.log" 2>&1 ||
		fail "debootstrap: $(tail -n 5 "$home/debootstrap.log")"
	as_root mv "$home/new" "$home/root"
}

# wrap writes a program that becomes the suite's one, so that signals reach that. Only root of a namespace may mount; the
# server refuses to run as root, and so gets the caller's user back.
wrap() {
	local path
	path=$(cd "$home/root" && compgen -G "usr/lib/postgresql/*/bin/$1") || fail "there is no $1 in $home/root"
	cat <<-END
		#!/bin/sh
		exec unshare --mount --map-root-user sh -c 'mount --bind "$home/root/usr" /usr &&
			exec unshare --user --map-user='"\$(id -u)"' --map-group='"\$(id -g)"' "\$0" "\$@"' "/$path" "\$@"
	END
}

[[ -d $home/root ]] || fetch
for program in initdb postgres; do
	wrap "$program" >"$home/bin/$program"
	chmod +x "$home/bin/$program"
done

# as_server runs a command as a user whom the server accepts, in a folder that it may enter.
as_server() {
	if [[ $(id -u) == 0 ]]; then
		(cd / && setpriv --reuid postgres --regid postgres --init-groups -- "$@")
	else
		(cd / && "$@")
	fi
}

data=$(mktemp -d "${TMPDIR:-/tmp}/postgres-$suite.XXXXXX") # a server of this run's own: another may be going on
stop() {
	[[ ! -e $data/data/postmaster.pid ]] || kill -INT "$(head -n 1 "$data/data/postmaster.pid")"
	[[ -z ${server:-} ]] || wait "$server" || true
	rm -rf "$data"
}
trap stop EXIT
[[ $(id -u) != 0 ]] || chown postgres: "$data"
as_server "$home/bin/initdb" -D "$data/data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync >&2
port=5442
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
as_server "$home/bin/postgres" -D "$data/data" -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
	-c max_connections=300 -c logging_collector=off >"$data/log" 2>&1 &
server=$!
export PATH=$home/bin:$PATH
export HOLDFAST_TEST_POSTGRES="postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
CGO_ENABLED=0 go run ./scripts/probe -wait 60s "$HOLDFAST_TEST_POSTGRES" >/dev/null || fail "PostgreSQL does not answer: $(tail -n 20 "$data/log")"
say "$("$home/bin/postgres" --version) of Debian $suite"
"$@"
