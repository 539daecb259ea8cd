package recoverability

import "github.com/holdfast-go/holdfast/header"

// maxTrimmed bounds a header of [TrimFault], in bytes.
const maxTrimmed = 512

// TrimFault is fault for a broker that has no room for all of it: without the history, and with no
// header over 512 bytes.
func TrimFault(fault header.Map) header.Map {
	var h header.Map
	h.Reserve(fault.Len())
	for name, value := range fault.All() {
		if name != header.HoldfastFaultHistory {
			h.Set(name, cut(value, maxTrimmed))
		}
	}
	return h
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
