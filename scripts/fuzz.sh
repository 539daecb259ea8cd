#!/usr/bin/env bash
# Runs every fuzz target of the given packages for FUZZTIME (10s), one after the other: go
# test takes one at a time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

targets=$(go test -list '^Fuzz' "${@:-github.com/holdfast-go/holdfast/...}" | awk '
	/^Fuzz/ { names[++n] = $1 }
	/^ok/   { for (i = 1; i <= n; i++) print $2, names[i]; n = 0 }')
[[ -n $targets ]] || fail "there are no fuzz targets"

while read -r package name; do
	say "== $package $name"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" "$package" </dev/null
done <<<"$targets"
