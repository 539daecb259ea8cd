#!/usr/bin/env bash
# Measures what a user of one driver downloads: go mod tidy in an empty module that imports endpoint and transport/DRIVER of
# this checkout, with an empty module cache. Prints the number of modules, their size unpacked, and the lines of go.sum; fails
# for rabbitmq when they are over the bounds.
#
#   scripts/downloads.sh [rabbitmq|postgres|sqlserver|sqlite|asb|sqs|inmemory ...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

library=github.com/holdfast-go/holdfast
checkout=$PWD
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOWORK=off GOFLAGS=-mod=mod

# measure DRIVER prints "modules MB lines".
measure() {
	local module=$folder/$1
	mkdir -p "$module"
	cat >"$module/go.mod" <<-END
		module example.com/user

		go $(sed -n 's/^go //p' go.mod)

		require $library v0.0.0

		replace $library => $checkout
	END
	cat >"$module/main.go" <<-END
		package main

		import (
			_ "$library/endpoint"
			_ "$library/transport/$1"
		)

		func main() {}
	END
	export GOMODCACHE=$folder/cache-$1
	(cd "$module" && go mod tidy 2>/dev/null && go build -o /dev/null .)
	local unpacked
	unpacked=$(find "$GOMODCACHE" -name '*@v*' -type d -not -path '*/cache/download/*' -prune)
	printf '%s %s %s\n' \
		"$(grep -c . <<<"$unpacked" || true)" \
		"$( ([[ -z $unpacked ]] && echo 0) || xargs -d '\n' du -cm <<<"$unpacked" | tail -n 1 | cut -f 1)" \
		"$( (cat "$module/go.sum" 2>/dev/null || true) | wc -l)"
}

for driver in "${@:-rabbitmq}"; do
	read -r modules size lines < <(measure "$driver")
	printf '%-10s %3d modules, %4d MB, %3d lines in go.sum\n' "$driver" "$modules" "$size" "$lines"
	if [[ $driver == rabbitmq ]] && ((modules > 8 || size > 50 || lines > 20)); then
		fail "a user of RabbitMQ alone should download at most 8 modules and 50 MB, with 20 lines in go.sum"
	fi
done
