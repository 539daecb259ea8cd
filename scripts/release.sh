#!/usr/bin/env bash
# Prepares a release: makes the commands' and the examples' modules require the library's new version in place of the
# checkout, and tags all three in order. Nothing is pushed.
#
#   scripts/release.sh v0.1.0
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

library=github.com/holdfast-go/holdfast
version=${1:-}
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || fail "give a version, such as v0.1.0"
[[ -z $(git status --porcelain) ]] || fail "there are changes that are not committed"
[[ -z $(git tag -l "$version") ]] || fail "the tag $version exists"

git tag -a "$version" -m "Holdfast $version"
say "tagged $version. Push it now: the other modules require it from where go get finds it:"
say "  git push origin $version"
read -r -p "Press Enter when it is pushed. "

for module in cmd/holdfast examples; do
	(
		cd "$module"
		export GOWORK=off
		go mod edit -dropreplace "$library" -require "$library@$version"
		sed -i '/^\/\/ Until the first release:/d' go.mod
		go mod tidy
		go build ./...
	)
done
git commit -qam "modules: require $library $version"
git tag -a "cmd/holdfast/$version" -m "Holdfast's command $version"
git tag -a "examples/$version" -m "Holdfast's examples $version"
say "tagged cmd/holdfast/$version and examples/$version:"
say "  git push origin main cmd/holdfast/$version examples/$version"
