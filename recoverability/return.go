package recoverability

import (
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/header"
)

// ReturnHeaders are the headers with which a message goes back from the error queue to the
// queue that it failed in: those that it came with, so that it is handled as if for the
// first time. What tells of the fault or counts retries, of this package or of
// NServiceBus, is left out. Only [header.HoldfastReturns] goes up by one, which tells a
// returned message from the original where a broker leaves out duplicates. [header.UndecodableHeaders]
// stays: where the message fails again, its headers are not lost.
func ReturnHeaders(failed header.Map) header.Map {
	var h header.Map
	h.Reserve(failed.Len() + 1)
	for name, value := range failed.All() {
		if !countsRetries(name) && !tellsOfFault(name) && !tellsOfQueue(name) {
			h.Set(name, value)
		}
	}
	h.Set(header.HoldfastReturns, strconv.Itoa(Returns(failed)+1))
	return h
}

// ForwardHeaders are the headers of a message that is forwarded to another queue: those that it came with, without the
// counts, the first failure and the history, so that it has all of its attempts there.
func ForwardHeaders(received header.Map) header.Map {
	var h header.Map
	h.Reserve(received.Len())
	for name, value := range received.All() {
		if !countsRetries(name) {
			h.Set(name, value)
		}
	}
	return h
}

// Returns is how often headers say that the message was returned from an error queue: 0
// where they say nothing that makes sense.
func Returns(h header.Map) int {
	n, err := strconv.Atoi(h.Get(header.HoldfastReturns))
	if err != nil || n < 0 || n > maxDelayed {
		return 0
	}
	return n
}

func tellsOfQueue(name string) bool {
	return name == header.FailedQ || name == header.TimeOfFailure || strings.HasPrefix(name, "Holdfast.Quarantine.")
}
