#!/usr/bin/env bash
# Measures endpoints against raw clients and peers, round by round in one run, so that the
# ratios hold on a machine that is not quiet. Prints a JSON line for each run, then medians, and
# how our endpoints stand to the others. What came of it is in docs/performance.md.
#
#   PEERS=path/to/run scripts/compare.sh [rabbitmq|postgres|sqlite|memory|outbox ...]
#
# PEERS is the runner of the peers' programs (raw amqp091-go and pgx loops, Watermill, River) for the suites rabbitmq and
# postgres; without it they measure only endpoints. The suite outbox builds its peers from bench/. BEFORE is a commit: each run of an endpoint is then made with
# that version too, the two in turn, and the ratio of each round says what has become faster or slower; 9 rounds at least
# for that, and with the suite outbox a version that has one. ROUNDS (5, with BEFORE 9), MESSAGES (30000), AMQP_URL and PG_URL as in the peers' own README.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

before=${BEFORE:-}
rounds=${ROUNDS:-$([[ -n $before ]] && echo 9 || echo 5)}
messages=${MESSAGES:-30000}
amqp=${AMQP_URL:-amqp://guest:guest@127.0.0.1:5672/}
pg=${PG_URL:-postgres://postgres@127.0.0.1:5432/test?sslmode=disable}
out=${OUT:-.tmp/compare.jsonl}
mkdir -p "$(dirname "$out")"
: >"$out"

CGO_ENABLED=0 go build -trimpath -o .tmp/holdfast ./cmd/holdfast
if [[ " $* " == *" outbox "* ]]; then
	CGO_ENABLED=0 go build -trimpath -o .tmp/peers ./bench/peers
fi

if [[ -n $before ]]; then
	rm -rf .tmp/before
	mkdir -p .tmp/before
	git archive "$before" | tar x -C .tmp/before
	( # a version without a workspace of its own must not find this one's
		cd .tmp/before
		[[ -f go.work ]] || export GOWORK=off
		CGO_ENABLED=0 go build -trimpath -o ../holdfast-before ./cmd/holdfast
	)
	rm -rf .tmp/before
fi

# ours NAME TRANSPORT WORK CONCURRENCY MESSAGES [OUTBOX]: one run of an endpoint, and with BEFORE one of the version before, which
# goes first in every other round.
ours() {
	if [[ -z $before ]]; then
		one "$1" .tmp/holdfast "${@:2}"
	elif ((round % 2)); then
		one "$1" .tmp/holdfast "${@:2}"
		one "before/$1" .tmp/holdfast-before "${@:2}"
	else
		one "before/$1" .tmp/holdfast-before "${@:2}"
		one "$1" .tmp/holdfast "${@:2}"
	fi
}

# one NAME PROGRAM TRANSPORT WORK CONCURRENCY MESSAGES [OUTBOX]: one run of a program.
one() {
	rm -f .tmp/compare.db .tmp/compare.db-* # sqlite's
	"$2" bench --transport "$3" --work "$4" --concurrency "$5" --messages "$6" --size 200 --headers "${HEADERS:-12}" \
		${7:+--outbox "$7"} --json |
		sed "s|^{|{\"name\":\"$1\",|" | tee -a "$out"
}

# peer SCENARIO: one run of a raw client or a peer of PEERS. It does not wait for a quiet machine and is not
# repeated until it had one, because our runs are not either.
peer() {
	[ -n "${PEERS:-}" ] || return 0
	AMQP_URL=$amqp PG_URL=$pg "$PEERS" -rounds 1 -quiet 0s -tries 1 -out .tmp/peer.jsonl "$1" >/dev/null
	peer_line <.tmp/peer.jsonl
	rm -f .tmp/peer.jsonl
}

# built SCENARIO MESSAGES: one run of a program of bench/.
built() { AMQP_URL=$amqp PG_URL=$pg .tmp/peers -messages "$2" "$1" | peer_line; }

# peer_line writes the result of a peer with the names that ours have.
peer_line() { sed 's|"scenario":|"name":|; s|"rate":|"messages_per_second":|' | tee -a "$out"; }

# rotate runs its arguments, a command line each, and begins with another one each round: what a run
# leaves to the broker to clear away slows down the one behind it, and shall not be always the same one's.
rotate() {
	local i at run
	for ((i = 0; i < $#; i++)); do
		at=$(((i + round) % $# + 1))
		read -ra run <<<"${!at}"
		"${run[@]}"
	done
}

rabbitmq() {
	for c in 32 100; do
		rotate "ours holdfast/rabbitmq/loop/c$c $amqp loop $c $messages" \
			"peer rmq/loop/quorum/2conn-co-ma/c$c/200/h12" \
			"peer rmq/loop/quorum/2conn/c$c/200/h12" \
			"peer rmq/peer/gorabbit/quorum/c$c/200" \
			"peer rmq/peer/watermill/quorum/pool/c$c/200"
	done
	rotate "ours holdfast/rabbitmq/loop/c1 $amqp loop 1 $((messages / 10))" \
		"peer rmq/loop/quorum/2conn/c1/200/h12"
	rotate "ours holdfast/rabbitmq/receive/c32 $amqp receive 32 $((messages * 2))" \
		"peer rmq/consume/quorum/p300/c1/multi/200/h8"
}

postgres() {
	rotate "ours holdfast/postgres/loop/c32 $pg loop 32 $((messages * 2))" \
		"peer pg/loop/on/lease/c32/200" \
		"peer pg/peer/watermill/on/queue/tx/b100/c8/200" \
		"peer pg/peer/river/on/insert/bench/c32/200"
	rotate "ours holdfast/postgres/atomic/c32 $pg atomic 32 $((messages / 2))" \
		'peer pg/loop/on/txp\+biz/c32/200' \
		"peer pg/peer/river/on/tx/bench/c32/200"
}

outbox() {
	rotate "ours holdfast/outbox/atomic/c32 $amqp atomic 32 $((messages / 3)) $pg" \
		"ours holdfast/no-outbox/dual/c32 $amqp dual 32 $((messages / 3)) $pg" \
		"built outbox/pgx-by-hand $((messages / 3))" \
		"built outbox/pgx-pipelined $((messages / 3))" \
		"built outbox/dual-write $((messages / 3))" \
		"built outbox/watermill $((messages / 6))" \
		"built outbox/river $((messages / 6))"
	rotate "ours holdfast/outbox/loop/c32 $amqp loop 32 $messages $pg" \
		"ours holdfast/no-outbox/loop/c32 $amqp loop 32 $messages"
	rotate "built outbox/tx-by-hand $messages" "built outbox/tx-none $messages"
}

sqlite() { ours holdfast/sqlite/loop/c8 sqlite:.tmp/compare.db loop 8 "$messages"; }

memory() { ours holdfast/memory/loop/c32 memory: loop 32 $((messages * 3)); }

for ((round = 1; round <= rounds; round++)); do
	echo "round $round of $rounds" >&2
	for suite in "${@:-rabbitmq}"; do "$suite"; done
done

echo "medians of messages per second:" >&2
sed -n 's/.*"name":"\([^"]*\)".*"messages_per_second":\([0-9.]*\).*/\1 \2/p' "$out" | sort |
	awk '{ n[$1]++; v[$1, n[$1]] = $2 }
	END { for (k in n) { m = n[k]; for (i = 1; i <= m; i++) a[i] = v[k, i] + 0
		for (i = 1; i < m; i++) for (j = i + 1; j <= m; j++) if (a[j] < a[i]) { t = a[i]; a[i] = a[j]; a[j] = t }
		printf "%-45s %10.0f  (%d runs, %.0f to %.0f)\n", k, a[int((m + 1) / 2)], m, a[1], a[m] } }' | sort

# against OURS PEER WANTED: the ratio of two medians is one of different rounds, so this is the
# median of the ratios round by round.
against() {
	sed -n 's/.*"name":"\([^"]*\)".*"messages_per_second":\([0-9.]*\).*/\1 \2/p' "$out" |
		awk -v ours="$1" -v peer="$2" -v wanted="$3" '
		$1 == ours { a[++n] = $2 }
		$1 == peer { b[++m] = $2 }
		END { if (n == 0 || n != m) exit
			for (i = 1; i <= n; i++) r[i] = a[i] / b[i]
			for (i = 1; i < n; i++) for (j = i + 1; j <= n; j++) if (r[j] < r[i]) { t = r[i]; r[i] = r[j]; r[j] = t }
			printf "%-30s %-40s %6.2f  (%.2f to %.2f, upper quartile %.2f, wanted %s)\n",
				ours, peer, r[int((n + 1) / 2)], r[1], r[n], r[int((3 * n + 3) / 4)], wanted }'
}

echo "ratios:" >&2
if [[ -n $before ]]; then
	sed -n 's/.*"name":"before\/\([^"]*\)".*/\1/p' "$out" | sort -u | while read -r name; do
		against "$name" "before/$name" 0.97
	done
fi
raw=rmq/loop/quorum/2conn
for c in 32 100; do
	against "holdfast/rabbitmq/loop/c$c" "$raw-co-ma/c$c/200/h12" 0.9
	against "holdfast/rabbitmq/loop/c$c" "$raw/c$c/200/h12" 1
	against "holdfast/rabbitmq/loop/c$c" "rmq/peer/gorabbit/quorum/c$c/200" 1
done
against holdfast/rabbitmq/loop/c32 rmq/peer/watermill/quorum/pool/c32/200 2
against holdfast/rabbitmq/loop/c100 rmq/peer/watermill/quorum/pool/c100/200 2.5
against holdfast/rabbitmq/loop/c1 $raw/c1/200/h12 0.95
against holdfast/rabbitmq/receive/c32 rmq/consume/quorum/p300/c1/multi/200/h8 0.6
against holdfast/postgres/loop/c32 pg/loop/on/lease/c32/200 0.5
against holdfast/postgres/loop/c32 pg/peer/watermill/on/queue/tx/b100/c8/200 2
against holdfast/postgres/loop/c32 pg/peer/river/on/insert/bench/c32/200 10
against holdfast/postgres/atomic/c32 pg/loop/on/txp+biz/c32/200 1
against holdfast/postgres/atomic/c32 pg/peer/river/on/tx/bench/c32/200 4
against holdfast/outbox/atomic/c32 outbox/pgx-by-hand 0.9
against holdfast/outbox/atomic/c32 outbox/pgx-pipelined 0.9
against holdfast/outbox/atomic/c32 holdfast/no-outbox/dual/c32 0.8
against holdfast/outbox/atomic/c32 outbox/dual-write 0.8
against holdfast/outbox/atomic/c32 outbox/watermill 3
against holdfast/outbox/atomic/c32 outbox/river 3
against holdfast/outbox/loop/c32 holdfast/no-outbox/loop/c32 0.5
