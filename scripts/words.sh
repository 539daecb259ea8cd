#!/usr/bin/env bash
# Fails on words that docs/glossary.md replaces, in Go files and in docs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

words='tells? whether|hand-?outs?|handed out|what (becomes|comes) of|dealt with|giv(es|e|ing|en) back|way out|wayout|sent ahead'
words+='|\bin hand\b|\bnobody\b|\bsomebody\b|\blent\b|\blanes?\b|surplus|backstop|putOff|heldBack|letGo'

# A line that needs one of the words: a pattern of its "file:text", and the reason.
allowed=(
	'http\.NoBody # the name is that of net/http'
	'holdfast\.delay-nobody # the name of a queue that exists'
	'lost.arrivals.nobody.level-0 # matches that queue'
)

found=$(git grep -iE "$words" -- '*.go' '*.md' ':!docs/glossary.md' ':!CHANGELOG.md' || true)
for line in "${allowed[@]}"; do
	pattern=${line%% # *}
	grep -qE "$pattern" <<<"$found" || fail "scripts/words.sh allows what is not there any more: $pattern"
	found=$(grep -vE "$pattern" <<<"$found" || true)
done
[[ -z $found ]] || fail "words that docs/glossary.md replaces:"$'\n'"$found"
