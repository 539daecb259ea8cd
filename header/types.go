package header

import (
	"iter"
	"strings"
)

// TypeNames returns an iterator over the message type names of an [EnclosedMessageTypes] value, most concrete first.
// The assembly that .NET appends after the first comma, with version, culture and key, is removed: types match by full
// name. Commas within the brackets of a generic name are part of it. Empty names are skipped.
func TypeNames(enclosed string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for rest, more := enclosed, true; more; {
			var entry string
			entry, rest, more = strings.Cut(rest, ";")
			if name := fullName(entry); name != "" && !yield(name) {
				return
			}
		}
	}
}

func fullName(entry string) string {
	depth := 0
	for i := range len(entry) {
		switch entry[i] {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth <= 0 {
				return strings.TrimSpace(entry[:i])
			}
		}
	}
	return strings.TrimSpace(entry)
}

// JoinTypes returns the [EnclosedMessageTypes] value of names, most concrete first.
func JoinTypes(names ...string) string { return strings.Join(names, ";") }
