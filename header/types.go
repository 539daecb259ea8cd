package header

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"
)

// TypeNames returns an iterator over the message type names of an [EnclosedMessageTypes] value,
// most concrete first. The assembly that .NET appends after the first comma, with version, culture
// and key, is removed: types match by full name. Commas within the brackets of a generic name are
// part of it. Empty names are skipped.
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

// JoinTypes returns the [EnclosedMessageTypes] value of names, most concrete first. The first of
// several names is followed by a comma and text in the place of an assembly: ServiceControl takes
// the text before the first comma for the type, and the whole value where there is none.
// NServiceBus finds types of unknown assemblies by their names.
func JoinTypes(names ...string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return names[0] + ", Holdfast;" + strings.Join(names[1:], ";")
}

// CheckTypes returns an error for the names of a message, most concrete first, if a receiver cannot
// read them: [TypeNames] does not return them from the value of [JoinTypes], or they are not valid
// UTF-8. Each name must be readable with an assembly, too.
func CheckTypes(names ...string) error {
	for _, name := range names {
		if !utf8.ValidString(name) {
			return fmt.Errorf("the type name %q is not valid UTF-8", name)
		}
		if read := slices.Collect(TypeNames(JoinTypes(name, name))); !slices.Equal(read, []string{name, name}) {
			return fmt.Errorf("a receiver would read the type name %q as %q: a name has no blanks around it, no open bracket, and "+
				"no comma or semicolon", name, read)
		}
	}
	return nil
}
