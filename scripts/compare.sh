#!/usr/bin/env bash
# Measures endpoints against raw clients and peers, round by round in one run, so that the
# ratios hold on a machine that is not quiet. Prints a JSON line for each run, then medians, and
# how our endpoints stand to the others. What came of it is in docs/performance.md.
#
#   PEERS=path/to/run scripts/compare.sh [rabbitmq|postgres|sqlite|memory ...]
#
# PEERS is the runner of the peers' programs (raw amqp091-go and pgx loops, Watermill, River);
# without it only endpoints are measured. ROUNDS (5), MESSAGES (30000), AMQP_URL and PG_URL as
# in the peers' own README.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${ROUNDS:-5}
messages=${MESSAGES:-30000}
amqp=${AMQP_URL:-amqp://guest:guest@127.0.0.1:5672/}
pg=${PG_URL:-postgres://postgres@127.0.0.1:5432/test?sslmode=disable}
out=${OUT:-.tmp/compare.jsonl}
mkdir -p "$(dirname "$out")"
: >"$out"

CGO_ENABLED=0 go build -trimpath -o .tmp/holdfast ./cmd/holdfast

# ours NAME TRANSPORT WORK CONCURRENCY MESSAGES: one run of an endpoint.
ours() {
	.tmp/holdfast bench --transport "$2" --work "$3" --concurrency "$4" --messages "$5" --size 200 --headers "${HEADERS:-12}" --json |
		sed "s|^{|{\"name\":\"$1\",|" | tee -a "$out"
}

# peer SCENARIO: one run of a raw client or a peer. It does not wait for a quiet machine and is not
# repeated until it had one, because our runs are not either.
peer() {
	[ -n "${PEERS:-}" ] || return 0
	AMQP_URL=$amqp PG_URL=$pg "$PEERS" -rounds 1 -quiet 0s -tries 1 -out .tmp/peer.jsonl "$1" >/dev/null
	sed 's|"scenario":|"name":|; s|"rate":|"messages_per_second":|' .tmp/peer.jsonl | tee -a "$out"
	rm -f .tmp/peer.jsonl
}

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

sqlite() {
	rm -f .tmp/compare.db .tmp/compare.db-*
	ours holdfast/sqlite/loop/c8 sqlite:.tmp/compare.db loop 8 "$messages"
	rm -f .tmp/compare.db .tmp/compare.db-*
}

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
			printf "%-30s %-40s %6.2f  (%.2f to %.2f, wanted %s)\n", ours, peer, r[int((n + 1) / 2)], r[1], r[n], wanted }'
}

echo "ratios:" >&2
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
