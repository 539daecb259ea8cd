package recoverability

import (
	"strings"

	"github.com/holdfast-go/holdfast/header"
)

// maxTrimmed bounds a header of [TrimFault], in bytes.
const maxTrimmed = 512

// TrimFault is fault for a broker that has no room for all of it: without the history, and with no
// header over 512 bytes. The stack has the text of the error as it was cut, or not at all.
func TrimFault(fault header.Map) header.Map {
	var h header.Map
	h.Reserve(fault.Len())
	for name, value := range fault.All() {
		if name != header.HoldfastFaultHistory {
			h.Set(name, cut(value, maxTrimmed))
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

// trimTexts cuts the text of an error, and its stack so that what is left of the text in it is the whole of that.
func trimTexts(text, stack string) (shortText, shortStack string) {
	shortText = cut(text, maxTrimmed)
	at := strings.Index(stack, text)
	switch {
	case text == "" || at < 0:
		return shortText, cut(stack, maxTrimmed)
	case at > maxTrimmed/2: // no room for both
		return shortText, cut(stack[:at], maxTrimmed)
	}
	shortText = cut(text, maxTrimmed-at)
	stack = stack[:at] + shortText + strings.ReplaceAll(stack[at+len(text):], text, shortText)
	return shortText, cutBeside(stack, shortText, maxTrimmed)
}

// MinimalFault is what of fault the message cannot be understood and returned without: the queue
// that it failed in, when, and the class of the error.
func MinimalFault(fault header.Map) header.Map {
	var h header.Map
	for _, name := range []string{header.FailedQ, header.TimeOfFailure, header.HoldfastFaultClass} {
		if value, ok := fault.Lookup(name); ok {
			h.Set(name, value)
		}
	}
	return h
}
