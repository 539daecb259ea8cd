#!/usr/bin/env bash
# Puts one fault at a time into the code, and looks whether a test finds it.
#
#   scripts/mutants.sh [-check] [-narrow] [-at COMMIT] [PATTERN]
#
# The faults are the lines of scripts/mutants.txt of this checkout, PATTERN (an extended regular expression) chooses by name:
#
#   name | file | sed expression (-E) | packages and -run of go test
#
# Each is applied to a copy of COMMIT (HEAD) below .tmp, so a change that is not committed is not tested. The tests of -run come
# first, and if these pass all tests of the packages. A test that takes too long has found the fault, too. The fault is stale if
# the expression changes nothing, or if the package does not compile. -check looks for stale faults only and runs no test;
# -narrow leaves the packages' other tests out. The exit status is 1 if a fault survived or is stale. Brokers are those of
# scripts/brokers.sh up.
set -euo pipefail -f
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

check=''
narrow=''
commit=HEAD
while [[ ${1-} == -* ]]; do
	case $1 in
	-check) check=yes ;;
	-narrow) narrow=yes ;;
	-at)
		commit=$2
		shift
		;;
	*) fail "unknown flag $1" ;;
	esac
	shift
done
pattern=${1:-.}
commit=$(git rev-parse --verify "$commit^{commit}")

folder=$PWD/.tmp/mutants
tree=$folder/tree
modules=$PWD/internal/brokertest/node/node_modules
remove_tree() {
	git worktree remove --force "$tree" 2>/dev/null || rm -rf "$tree"
	git worktree prune
}
mkdir -p "$folder"
remove_tree
trap remove_tree EXIT
git worktree add --quiet --detach "$tree" "$commit"
if [[ -z $check ]]; then
	urls=$(scripts/brokers.sh up)
	eval "$urls"
	[[ ! -d $modules ]] || ln -s "$modules" "$tree/internal/brokertest/node/node_modules"
fi

# tests runs go test in the copy, and prints what it says of the fault: nothing if all tests pass.
tests() { # name limit arguments…
	local name=$1 limit=$2 output
	shift 2
	output=$folder/$name.txt
	! (cd "$tree" && CGO_ENABLED=0 go test -failfast -count=1 -vet=off -timeout="$limit" "$@") >"$output" 2>&1 || return 0
	if grep -qE '\[(build|setup) failed\]' "$output"; then
		echo "stale: does not compile"
	elif grep -q '^panic: test timed out' "$output"; then
		echo "found (hang)"
	else
		# The innermost failure is the last of those that are indented most.
		awk '/^ *--- FAIL: / { at = match($0, /-/); if (at >= deepest) { deepest = at; test = $3 } }
			/^panic: |^fatal error: / { panic = $0 }
			END { print "found by " (test ? test : panic ? panic : "the end of the process") }' "$output"
	fi
}

# outcome applies the fault, and prints what tests say of it.
outcome() { # name file expression tests
	local found
	[[ -f $tree/$2 ]] || { echo "stale: no such file" && return; }
	sed -E -i "$3" "$tree/$2" || { echo "stale: sed fails" && return; }
	if git -C "$tree" diff --quiet; then
		echo "stale: changes nothing"
	elif [[ -n $check ]]; then
		(cd "$tree" && go build -o /dev/null "./$(dirname "$2")" 2>/dev/null) || { echo "stale: does not compile" && return; }
		echo applies
	else
		# shellcheck disable=SC2086 # several words
		found=$(tests "$1" 2m $4)
		if [[ -z $found && -z $narrow ]]; then
			# shellcheck disable=SC2086,SC2001
			found=$(tests "$1" 15m $(sed -E 's/ -run=[^ ]*//g' <<<"$4"))
		fi
		echo "${found:-SURVIVED}"
	fi
}

declare -A count=()
bad=0
while IFS= read -r line; do
	[[ $line != \#* && -n $line ]] || continue
	IFS=$'\t' read -r name file expression arguments < <(awk -F ' [|] ' -v OFS='\t' '{ print $1, $2, $3, $4 }' <<<"$line")
	grep -qE -- "$pattern" <<<"$name" || continue
	[[ -n $arguments ]] || fail "scripts/mutants.txt: not four fields: $line"
	begin=$SECONDS
	result=$(outcome "$name" "$file" "$expression" "$arguments" </dev/null)
	git -C "$tree" checkout --quiet -- .
	printf '%-36s %4d s  %s\n' "$name" $((SECONDS - begin)) "$result"
	kind=${result%%[: ]*}
	count[$kind]=$((${count[$kind]:-0} + 1))
	[[ $kind == found || $kind == applies ]] || bad=$((bad + 1))
done <scripts/mutants.txt
echo
echo "at $(git rev-parse --short "$commit"):"
for kind in "${!count[@]}"; do
	printf '%-10s %d\n' "$kind" "${count[$kind]}"
done
((bad == 0))
