#!/usr/bin/env bash
# Runs tests on brokers, and prints what installation, download, compilation and tests took.
#
#   scripts/test.sh NAME REPEAT FORMAT PACKAGES [flags of go test…]
#
# PACKAGES are separated by spaces, and flags are written with their values, as -run=Name. A failed test is run twice more,
# alone; what passes then is listed as unsteady. The run is red if a test fails three times, at a data race, when a package
# panics or does not compile, and at more than 30 failures. FORMAT is that of gotestsum. REPEAT is the command that repeats a
# failed test when PKG and RUN follow.
#
# .tmp/NAME.json has the events of all runs, and .tmp/NAME.unsteady a line for each test that was run again.
# RACE is -race or empty. The run named unit has no brokers.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=$1 repeat=$2 format=$3 packages=$4
shift 4

race=()
export CGO_ENABLED=0
if [[ -n ${RACE-} ]]; then
	race=("$RACE")
	CGO_ENABLED=1
fi

# The phases so far, each with its seconds, and with the CPU seconds of the processes that ended in it.
took=''
begin=$EPOCHREALTIME
cpu_before=0

# ended notes that a phase has ended.
ended() { # phase
	local cpu
	times >"$times"
	cpu=$(awk 'NR == 2 { split($0, part, /[ms ]+/); print part[1] * 60 + part[2] + part[3] * 60 + part[4] }' "$times")
	took+=$(awk -v name="$1" -v from="$begin" -v to="$EPOCHREALTIME" -v cpu="$cpu" -v before="$cpu_before" \
		'BEGIN { printf "%s %.0f s (CPU %.0f s), ", name, to - from, cpu - before }')
	begin=$EPOCHREALTIME
	cpu_before=$cpu
}

# machine prints the CPU seconds of the whole machine, brokers included, or nothing where the system does not count them.
machine() {
	[[ ! -r /proc/stat ]] ||
		awk -v hz="$(getconf CLK_TCK)" '/^cpu / { printf "%.2f", ($2 + $3 + $4 + $7 + $8) / hz }' /proc/stat
}

mkdir -p .tmp
times=$(mktemp)
trap 'rm -f "$times"' EXIT
machine_before=$(machine)

if [[ -n ${RACE-} ]]; then
	scripts/compiler.sh
fi
if [[ $name != unit ]]; then
	urls=$(scripts/brokers.sh up)
	eval "$urls"
fi
ended installation

# What the packages need is found by loading them: go mod download would load all that the modules name.
# shellcheck disable=SC2086 # a list
go list -e -test -deps $packages >/dev/null
ended download

# Compiles tests too, and links nothing: what is linked is not cached. All cores help, which they do not when tests run.
# shellcheck disable=SC2086 # a list
go list "${race[@]}" -test -deps -export $packages >/dev/null || fail "a package does not compile"
CGO_ENABLED=0 go build -o .tmp/testreport ./scripts/testreport
GOWORK=off CGO_ENABLED=0 go build -modfile=tools/go.mod -o .tmp/gotestsum gotest.tools/gotestsum
ended compilation

rm -f ".tmp/$name.json" ".tmp/$name.unsteady"
status=0
# make lint vets all packages.
# A binary that is linked for one run needs no tables for debuggers; stack traces have their own.
.tmp/gotestsum --no-color --format "$format" --format-hide-empty-pkg --hide-summary all --jsonfile ".tmp/$name.json" \
	--rerun-fails=2 --rerun-fails-max-failures=30 --rerun-fails-abort-on-data-race --rerun-fails-report ".tmp/$name.unsteady" \
	--packages "$packages" -- -vet=off -ldflags='-s -w' "${race[@]}" "$@" || status=$?
.tmp/testreport result -repeat "$repeat" ".tmp/$name.json"
ended tests
machine_after=$(machine)
[[ -z $machine_after ]] || took+=$(awk -v from="$machine_before" -v to="$machine_after" \
	'BEGIN { printf "CPU of the whole machine %.0f s, ", to - from }')
echo "took: ${took%, }"
exit "$status"
