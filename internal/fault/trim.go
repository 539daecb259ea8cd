package fault

import (
	"strings"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
)

// maxTrimmed bounds a header of [Trim], in bytes.
const maxTrimmed = 512

// Trim returns fault headers for a broker that refuses the whole ones: without the history, and
// with no header over 512 bytes. The stack contains the cut text of the error whole, or not at all,
// and its first frame.
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

// trimTexts cuts the text of an error, and the stack so that it contains the cut text whole, and
// the first frame.
func trimTexts(text, stack string) (shortText, shortStack string) {
	shortText = errtree.Cut(text, maxTrimmed)
	at := strings.Index(stack, text)
	if i := strings.Index(stack, ": "+text+"\n"); i >= 0 { // the text may be a part of the type
		at = i + 2
	}
	switch {
	case text == "" || at < 0:
		return shortText, errtree.Cut(stack, maxTrimmed)
	case at > maxTrimmed/2: // no room for both
		return shortText, errtree.Cut(stack[:at], maxTrimmed)
	}
	frame, rest := firstFrame(stack[at+len(text):])
	if maxTrimmed-at-len(frame) < min(len(text), maxTrimmed/4) {
		frame, _, _ = strings.Cut(frame, " in ")
	}
	shortText = errtree.Cut(text, maxTrimmed-at-len(frame))
	stack = stack[:at] + shortText + frame + strings.ReplaceAll(rest, text, shortText)
	return shortText, cutBeside(stack, shortText, maxTrimmed)
}

// firstFrame splits the rest of a stack after the text of the error behind its first line, if that
// is a frame.
func firstFrame(stack string) (frame, rest string) {
	if !strings.HasPrefix(stack, "\n   at ") {
		return "", stack
	}
	end := strings.IndexByte(stack[1:], '\n') + 1
	if end == 0 {
		end = len(stack)
	}
	return stack[:min(end, maxFrame+1)], stack[end:]
}

const maxShort = 100 // bytes of a header of Short

// Short returns the headers of [Minimal], and with them the type of the error and the host, by
// which ServiceControl groups and shows the message. The host is left out where its name is long: a
// cut one is another host.
func Short(fault header.Map) header.Map {
	h := Minimal(fault)
	if typ, ok := fault.Lookup(header.ExceptionType); ok {
		h.Set(header.ExceptionType, errtree.Cut(typ, maxShort))
	}
	id, host := fault.Get(header.HostID), fault.Get(header.HostDisplayName)
	if id != "" && host != "" && len(id)+len(host) <= maxShort {
		h.Set(header.HostID, id)
		h.Set(header.HostDisplayName, host)
	}
	return h
}

// Minimal returns the fault headers without which a message cannot be understood and returned: the
// queue, the time, the class of the error, and the endpoint, with which ServiceControl recognizes
// the message if it fails again.
func Minimal(fault header.Map) header.Map {
	var h header.Map
	for _, name := range []string{
		header.FailedQ, header.TimeOfFailure, header.HoldfastFaultClass, header.ProcessingEndpoint,
	} {
		if value, ok := fault.Lookup(name); ok {
			h.Set(name, value)
		}
	}
	return h
}
