#!/usr/bin/env bash
# Runs a command on the RabbitMQ of another Debian suite, beside the one that is installed.
#
#   rabbitmq-version.sh trixie go test ./transport/rabbitmq
#   rabbitmq-version.sh sid bash      a shell, to try things by hand
#
# The suite is unpacked into .tmp/rabbitmq-SUITE, once, by debootstrap. Its /usr is what the server's
# programs see in the place of ours, and nobody else does. HOLDFAST_TEST_AMQP names the node that runs
# while the command does, and HOLDFAST_TEST_RABBITMQ_BIN the programs, of which tests start nodes of their own.
# It needs Linux and, for debootstrap, root; HOLDFAST_DEBIAN_MIRROR is another mirror than Debian's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

suite=${1:-}
if [[ ! $suite =~ ^[a-z]+$ || $# -lt 2 ]]; then
	sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
	exit 2
fi
shift
home=$PWD/.tmp/rabbitmq-$suite

# fetch unpacks the suite. Its rest goes with it: the server needs the Erlang and the C library that it was built with.
fetch() {
	command -v debootstrap >/dev/null || install debootstrap
	say "unpacking rabbitmq-server of $suite"
	as_root rm -rf --one-file-system "$home"
	mkdir -p "$home/bin"
	as_root debootstrap --variant=minbase --include=rabbitmq-server "$suite" "$home/new" \
		"${HOLDFAST_DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$home/debootstrap.log" 2>&1 ||
		fail "debootstrap: $(tail -n 5 "$home/debootstrap.log")"
	for program in rabbitmq-server rabbitmqctl epmd; do
		wrap "$program" >"$home/bin/$program"
		chmod +x "$home/bin/$program"
	done
	as_root mv "$home/new" "$home/root"
}

# wrap writes a program that becomes the suite's one, so that signals reach that.
wrap() {
	local path=/usr/lib/rabbitmq/bin/$1
	[[ -e $home/new$path ]] || path=/usr/bin/$1
	cat <<-END
		#!/bin/sh
		root=
		[ "\$(id -u)" = 0 ] || root=--map-root-user
		exec unshare --mount \$root sh -c 'mount --bind "$home/root/usr" /usr && exec "\$0" "\$@"' $path "\$@"
	END
}

[[ -d $home/root ]] || fetch
HOLDFAST_BROKERS=$(mktemp -d "$home/run.XXXXXX") # a node of this run's own: another may be going on
export HOLDFAST_TEST_RABBITMQ_BIN=$home/bin HOLDFAST_BROKERS HOLDFAST_AMQP_PORT=5682
unset HOLDFAST_TEST_AMQP HOLDFAST_TEST_RABBITMQCTL
trap 'scripts/brokers.sh down; rm -rf "$HOLDFAST_BROKERS"' EXIT
# One after the other, for they look for free ports. The node does not keep the lock (-o).
urls=$(flock -o .tmp/rabbitmq.lock scripts/brokers.sh up)
eval "$urls"
say "RabbitMQ $("$HOLDFAST_TEST_RABBITMQCTL" -q eval 'rabbit_misc:version().') of Debian $suite"
"$@"
