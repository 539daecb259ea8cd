#!/usr/bin/env bash
# Runs a command again and again on a busy machine, and records each run.
#
#   scripts/underload.sh N command…      for instance: scripts/underload.sh 10 make test
#
# Four processes keep the cores busy, and one writes, syncs and deletes a file of 256 MiB below .tmp. With UNDERLOAD_LOAD=0
# there is no load: quiet runs have the same record. Each run adds a line to UNDERLOAD_FILE (.tmp/underload.tsv): result, load
# or quiet, seconds, commit, UTC time of the end, command. The output of red runs is kept in .tmp/underload. The exit status is
# 1 if a run was red.
set -euo pipefail
record=$(realpath -m "${UNDERLOAD_FILE:-$(dirname "${BASH_SOURCE[0]}")/../.tmp/underload.tsv}")
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ ${1-} =~ ^[1-9][0-9]*$ && $# -ge 2 ]] || fail "usage: scripts/underload.sh N command…, N at least 1"
runs=$1
shift
kept=$PWD/.tmp/underload
mkdir -p "$kept" "$(dirname "$record")"
work=$(mktemp -d "$kept/load.XXXXXX")

busy() { while :; do :; done; }

writes() {
	while :; do
		dd if=/dev/zero of="$work/file" bs=1M count=256 conv=fsync status=none || exit
		rm "$work/file"
	done
}

# load starts a process of the load in a group of its own, so that its children end with it.
groups=()
load() { # function
	set -m
	"$1" </dev/null &
	set +m
	groups+=($!)
}

run=0
green=0
red=0
name=''
begin=''
cleanup() {
	for group in "${groups[@]}"; do
		kill -KILL -- "-$group" 2>/dev/null || true
	done
	wait 2>/dev/null || true
	rm -rf "$work"
	say "$green green, $red red of $runs: $record"
}
trap cleanup EXIT
trap 'say "interrupted in run $((run + 1))"; exit 130' INT TERM

commit() {
	git rev-parse --short HEAD | tr -d '\n'
	[[ -z $(git status --porcelain) ]] || printf '+dirty'
}

kind=quiet
if [[ ${UNDERLOAD_LOAD:-1} != 0 ]]; then
	kind=load
	for _ in 1 2 3 4; do
		load busy
	done
	load writes
fi

while ((run < runs)); do
	at=$(commit) # what is edited while the tests run is not what they test
	name=$(date -u +%Y%m%dT%H%M%SZ)-$((run + 1))
	begin=$SECONDS
	say "run $((run + 1)) of $runs, $kind"
	result=green
	"$@" >"$kept/$name.txt" 2>&1 </dev/null || result=red
	run=$((run + 1))
	if [[ $result == green ]]; then
		green=$((green + 1))
		rm "$kept/$name.txt"
	else
		red=$((red + 1))
		say "red: $kept/$name.txt"
		tail -n 20 "$kept/$name.txt" >&2
	fi
	printf '%s\t%s\t%d\t%s\t%s\t%s\n' "$result" "$kind" $((SECONDS - begin)) "$at" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" |
		tee -a "$record"
done
((red == 0))
