package fault

import (
	"strings"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
)

// maxTrimmed bounds a header of [Trim], in bytes.
const maxTrimmed = 512

// Trim returns fault headers for a broker that refuses the whole ones: without the history, and with no header over 512
// bytes. The stack contains the cut text of the error whole, or not at all.
func Trim(fault header.Map) header.Map {
	var h header.Map
	h.Reserve(fault.Len())
	for name, value := range fault.All() {
		if name != header.HoldfastFaultHistory {
			h.Set(name, errtree.Cut(value, maxTrimmed))
		}
	}
	text, stack := trimTexts(fault.Get(header.ExceptionMessage), fault.Get(header.ExceptionStackTrace))
	for name, value := range map[string]string{header.ExceptionMessage: text, header.ExceptionStackTrace: stack} {
		if _, ok := h.Lookup(name); ok {
			h.Set(name, value)
		}
	}
	return h
}

// trimTexts cuts the text of an error, and the stack so that it contains the cut text whole.
func trimTexts(text, stack string) (shortText, shortStack string) {
	shortText = errtree.Cut(text, maxTrimmed)
	at := strings.Index(stack, text)
	switch {
	case text == "" || at < 0:
		return shortText, errtree.Cut(stack, maxTrimmed)
	case at > maxTrimmed/2: // no room for both
		return shortText, errtree.Cut(stack[:at], maxTrimmed)
	}
	shortText = errtree.Cut(text, maxTrimmed-at)
	stack = stack[:at] + shortText + strings.ReplaceAll(stack[at+len(text):], text, shortText)
	return shortText, cutBeside(stack, shortText, maxTrimmed)
}

// Minimal returns the fault headers without which a message cannot be understood and returned: the queue, the time, and
// the class of the error.
func Minimal(fault header.Map) header.Map {
	var h header.Map
	for _, name := range []string{header.FailedQ, header.TimeOfFailure, header.HoldfastFaultClass} {
		if value, ok := fault.Lookup(name); ok {
			h.Set(name, value)
		}
	}
	return h
}
