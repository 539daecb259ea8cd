package fault

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

// DelayHeaders returns the headers of the copy that a delayed retry sends: those of the failed
// message, with the retry counted and its policy named, with the time at which it is due, from
// which NServiceBus and ServiceControl compute the critical time, and with the failure in the
// history in the words of the fault headers.
func DelayHeaders(f recoverability.Failure, fault header.Map, after time.Duration) header.Map {
	h := f.Headers.Clone()
	h.Set(header.DeliverAt, header.FormatTime(f.Now.Add(after)))
	h.Set(header.Retries, strconv.Itoa(min(f.Delayed+1, maxCount)))
	h.Set(header.RetriesTimestamp, header.FormatTime(f.Now))
	h.Set(header.HoldfastFirstFailure, header.FormatTime(f.FirstFailure))
	h.Set(header.HoldfastHistory, historyText(append(slices.Clip(f.History), Past(f, fault))))
	describeRetry(&h, f, fault)
	h.Del(header.HoldfastUsedRetries)
	h.Del(header.HoldfastThrottledFailures)
	h.Del(header.HoldfastThrottledSince)
	return h
}

// describeRetry sets the headers of a retry by a policy, and removes those of an earlier one.
func describeRetry(h *header.Map, f recoverability.Failure, fault header.Map) {
	for _, name := range retryHeaders {
		h.Del(name)
	}
	policy := f.Resilience().Policy.Name
	if policy == "" {
		return
	}
	h.Set(header.HoldfastRetryPolicy, policy)
	h.Set(header.HoldfastRetryAttempt, strconv.Itoa(min(f.Delayed+2, maxCount)))
	h.Set(header.HoldfastRetryLastError, fault.Get(header.ExceptionMessage))
}

var retryHeaders = []string{header.HoldfastRetryPolicy, header.HoldfastRetryAttempt, header.HoldfastRetryLastError}

// DeferHeaders returns the headers of the copy that postpones a message while attempts are limited:
// the received ones, with the immediate retries that are used up and the failures that used up
// none.
func DeferHeaders(received header.Map, used int, t Throttled) header.Map {
	h := received.Clone()
	if used > 0 {
		h.Set(header.HoldfastUsedRetries, strconv.Itoa(min(used, maxCount)))
	}
	h.Del(header.HoldfastThrottledFailures)
	h.Del(header.HoldfastThrottledSince)
	if t.Failures > 0 {
		h.Set(header.HoldfastThrottledFailures, strconv.Itoa(min(t.Failures, maxCount)))
		h.Set(header.HoldfastThrottledSince, header.FormatTime(t.Since))
	}
	return h
}

// ErrorHeaders returns the headers of the copy in the error queue: those of the failed message with
// fault, and without counts of retries and headers of an earlier fault. A message that is returned
// from there starts with all its attempts.
func ErrorHeaders(received, fault header.Map) header.Map {
	h := without(received, fault.Len(), countsRetries, describesFault)
	for name, value := range fault.All() {
		h.Set(name, value)
	}
	return h
}

// DeadLetterHeaders returns the fault headers of a message that the broker has dead-lettered:
// fault, and the received ones in its place if the message was received with a failure, such as
// that of an NServiceBus endpoint that has the broker move what it cannot handle. The broker's
// reason then is in [header.HoldfastFaultDeadLettered].
func DeadLetterHeaders(received, fault header.Map) header.Map {
	if _, failed := received.Lookup(header.ExceptionType); !failed {
		return fault
	}
	h := without(fault, received.Len()+1, describesException)
	for name, value := range received.All() {
		if describesException(name) || slices.Contains(describesPlace, name) {
			h.Set(name, value)
		}
	}
	h.Set(header.HoldfastFaultDeadLettered, fault.Get(header.ExceptionMessage))
	return h
}

// describesPlace has the headers that say where and when a message has failed.
var describesPlace = []string{
	header.FailedQ, header.TimeOfFailure, header.ProcessingEndpoint, header.ProcessingMachine, header.HostID, header.HostDisplayName,
}

// ReturnHeaders returns the headers of a message that is returned from the error queue to its
// queue: those that it was sent with, as far as they are known. Headers of the fault and counts of
// retries, of Holdfast and of NServiceBus, are removed. [header.HoldfastReturns] is increased by
// one: so a broker that removes duplicates distinguishes the returned message from the original.
// [header.UndecodableHeaders] stays, for the case that the message fails again.
func ReturnHeaders(failed header.Map) header.Map {
	h := without(failed, 1, countsRetries, describesFault, func(name string) bool {
		return name == header.FailedQ || name == header.TimeOfFailure || strings.HasPrefix(name, "Holdfast.Quarantine.")
	})
	h.Set(header.HoldfastReturns, strconv.Itoa(Returns(failed)+1))
	return h
}

// AuditHeaders returns the headers of an audit copy, with room for more: the received ones without
// those of a fault of Holdfast's, which ServiceControl leaves on a message that it returns.
func AuditHeaders(received header.Map, more int) header.Map {
	return without(received, more, describesOwnFault)
}

// ReturnedHeaders returns the headers of a message that ServiceControl has returned, as its sender
// made them: without those of a fault.
func ReturnedHeaders(received header.Map) header.Map { return without(received, 0, describesOwnFault) }

// ForwardHeaders returns the headers of a message that is forwarded to another queue: the received
// ones without counts, first failure and history, so that the message has all its attempts there.
func ForwardHeaders(received header.Map) header.Map { return without(received, 0, countsRetries) }

// QuarantineHeaders returns the headers of the copy that is moved to quarantine: those of the
// message, its queue, and the number of its deliveries there.
func QuarantineHeaders(received header.Map, queue string, attempts int) header.Map {
	h := received.Clone()
	h.Set(header.HoldfastQuarantineQueue, queue)
	h.Set(header.HoldfastQuarantineAttempts, strconv.Itoa(attempts))
	return h
}

// LeaveQuarantine reverses [QuarantineHeaders]. Where the headers are missing or invalid, queue is
// "" and attempts is 1.
func LeaveQuarantine(received header.Map) (h header.Map, queue string, attempts int) {
	h = received.Clone()
	queue = h.Get(header.HoldfastQuarantineQueue)
	attempts = max(1, count(h.Get(header.HoldfastQuarantineAttempts)))
	h.Del(header.HoldfastQuarantineQueue)
	h.Del(header.HoldfastQuarantineAttempts)
	return h, queue, attempts
}

// DecidedHeaders returns the headers of a copy that waits outside of the error queue: those of the
// copy in an error queue, and the name of that queue. Whoever receives the copy moves it there, and
// runs no handler.
func DecidedHeaders(failed header.Map, errorQueue string) header.Map {
	h := failed.Clone()
	h.Set(header.HoldfastFaultDecided, errorQueue)
	return h
}

// LeaveDecided reverses [DecidedHeaders], and divides the headers into the received ones and those
// of the fault.
func LeaveDecided(decided header.Map) (received, fault header.Map) {
	isFault := func(name string) bool { return describesFault(name) || slices.Contains(besideFault, name) }
	received = without(decided, 0, isFault)
	fault = without(decided, 0, func(name string) bool { return !isFault(name) || name == header.HoldfastFaultDecided })
	return received, fault
}

// besideFault are the headers of a fault whose names do not say so.
var besideFault = []string{
	header.FailedQ, header.TimeOfFailure, header.ProcessingEndpoint, header.ProcessingMachine, header.HostID, header.HostDisplayName,
}

// without returns the headers for whose names all of dropped return false, with room for more.
func without(from header.Map, more int, dropped ...func(name string) bool) header.Map {
	var h header.Map
	h.Reserve(from.Len() + more)
	for name, value := range from.All() {
		if !slices.ContainsFunc(dropped, func(drop func(string) bool) bool { return drop(name) }) {
			h.Set(name, value)
		}
	}
	return h
}

func countsRetries(name string) bool { return header.KindOf(name) == header.KindRetries }

func describesFault(name string) bool {
	return describesException(name) || describesOwnFault(name)
}

func describesException(name string) bool { return header.KindOf(name) == header.KindException }

func describesOwnFault(name string) bool { return header.KindOf(name) == header.KindFault }
