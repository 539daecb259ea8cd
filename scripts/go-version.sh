#!/usr/bin/env bash
# Checks that Go is there and new enough for go.mod: the errors of a very old Go do not say so.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need=$(sed -n 's/^go //p' go.mod)
advice="Go $need or later is needed: https://go.dev/dl/ has it"

command -v go >/dev/null || fail "there is no go on the PATH. $advice"

# A Go from 1.21 on fetches the version that go.mod asks for, unless it was told not to.
have=$(go env GOVERSION 2>/dev/null) || fail "$(go version 2>&1 | tail -n 1). $advice"
have=${have#go}
have=${have%% *}
oldest=$(printf '%s\n' "$need" "$have" | sort -V | head -n 1)
[[ $oldest == "$need" ]] || fail "this is Go $have. $advice"
