#!/usr/bin/env bash
# Lints, and tests the packages that differ from the commit where the branch left BASE (origin/main), with the changes that are
# not committed yet. Packages without brokers that import a changed package are tested too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

all=github.com/holdfast-go/holdfast
base=$(git merge-base "${BASE:-origin/main}" HEAD) || fail "no commit in common with ${BASE:-origin/main}; name another: make touched BASE=main"

# package prints the nearest folder of a file, from the root, that has Go files: testdata belongs to the package above it.
package() { # file
	local folder
	folder=$(dirname "$1")
	while [[ $folder != . ]] && ! compgen -G "$folder/*.go" >/dev/null; do
		folder=$(dirname "$folder")
	done
	printf '%s\n' "$folder"
}

changed=$(
	{
		git diff --name-only "$base"
		git ls-files --others --exclude-standard
	} | while read -r file; do
		case $file in
		go.mod | go.sum) printf '%s\n' "$all/..." ;;
		*/go.mod | */go.sum) printf '%s/...\n' "$all/$(dirname "$file")" ;;
		*) package "$file" | sed "s|^|$all/|; s|/\.$||" ;;
		esac
	done | sort -u
)
[[ -n $changed ]] || fail "nothing differs from ${BASE:-origin/main}"
# shellcheck disable=SC2086 # a list; a package that was deleted is none
changed=$(go list -e -f '{{if .Dir}}{{.ImportPath}}{{end}}' $changed)

importers=$(go list -e -test -f '{{.ImportPath}} {{join .Deps " "}}' "$all/..." | awk -v changed="$changed" -v brokers="$all/internal/brokertest" '
	BEGIN { n = split(changed, list); for (i = 1; i <= n; i++) is[list[i]] = 1 }
	$1 ~ /\.test$/ {
		hit = 0
		for (i = 2; i <= NF; i++) {
			if ($i == brokers) next
			if ($i in is) hit = 1
		}
		if (hit) print substr($1, 1, length($1) - 5)
	}')

packages=$(printf '%s\n' "$changed" "$importers" | sort -u | xargs)
say "touched: ${packages//$all\//./}"
make lint
exec make test PKG="$packages"
