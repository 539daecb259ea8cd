#!/usr/bin/env bash
# Makes sure that there is a C compiler, which the race detector needs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# compiles tries a whole program: a compiler without the C library's headers is of no use.
compiles() {
	local cc object
	cc=$(go env CC)
	command -v "${cc%% *}" >/dev/null || return 1
	object=$(mktemp)
	trap 'rm -f "$object"' RETURN
	# shellcheck disable=SC2086 # CC may hold flags
	printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' |
		$cc -x c -o "$object" - 2>/dev/null
}

compiles && exit
can_install || fail "go test -race needs a C compiler: install gcc and the C library's headers," \
	"or run 'make check', which does without"
install gcc libc6-dev
compiles || fail "gcc is installed, but CC=$(go env CC) still does not compile a program"
