#!/usr/bin/env bash
# Measures endpoints against raw clients and peers, round by round in one run, so that the
# ratios hold on a machine that is not quiet. Prints a JSON line for each run, then medians.
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

# peer SCENARIO: one run of a raw client or a peer.
peer() {
	[ -n "${PEERS:-}" ] || return 0
	AMQP_URL=$amqp PG_URL=$pg "$PEERS" -rounds 1 -out .tmp/peer.jsonl "$1" >/dev/null
	sed 's|"scenario":|"name":|; s|"rate":|"messages_per_second":|' .tmp/peer.jsonl | tee -a "$out"
	rm -f .tmp/peer.jsonl
}

rabbitmq() {
	for c in 32 100; do
		ours "holdfast/rabbitmq/loop/c$c" "$amqp" loop "$c" "$messages"
		peer "rmq/loop/quorum/2conn-co-ma/c$c/200/h12"
		peer "rmq/loop/quorum/2conn/c$c/200/h12"
		peer "rmq/peer/gorabbit/quorum/c$c/200"
		peer "rmq/peer/watermill/quorum/pool/c$c/200"
	done
	ours holdfast/rabbitmq/loop/c1 "$amqp" loop 1 $((messages / 10))
	peer rmq/loop/quorum/2conn/c1/200/h12
	ours holdfast/rabbitmq/receive/c32 "$amqp" receive 32 $((messages * 2))
	peer rmq/consume/quorum/p300/c1/multi/200/h8
}

postgres() {
	ours holdfast/postgres/loop/c32 "$pg" loop 32 $((messages * 2))
	peer pg/loop/on/lease/c32/200
	peer pg/peer/watermill/on/queue/tx/b100/c8/200
	peer pg/peer/river/on/insert/bench/c32/200
	ours holdfast/postgres/atomic/c32 "$pg" atomic 32 $((messages / 2))
	peer 'pg/loop/on/txp\+biz/c32/200'
	peer pg/peer/river/on/tx/bench/c32/200
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
