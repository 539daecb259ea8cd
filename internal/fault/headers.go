package fault

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/strictjson"
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

// maxCount bounds the counts that are read from headers.
const maxCount = 1 << 20

// DelayedRetries returns the number of delayed retries in the headers; 0 if it is missing or
// invalid.
func DelayedRetries(h header.Map) int { return count(h.Get(header.Retries)) }

// UsedRetries returns the number of immediate retries of this cycle that were used up before the
// copy with these headers was made; 0 if it is missing or invalid.
func UsedRetries(h header.Map) int { return count(h.Get(header.HoldfastUsedRetries)) }

// Returns returns how often the message was returned from an error queue; 0 if the header is
// missing or invalid.
func Returns(h header.Map) int { return count(h.Get(header.HoldfastReturns)) }

func count(value string) int {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxCount {
		return 0
	}
	return n
}

// FirstFailure returns the time of the message's first failure in the headers. It returns now if
// that is missing, invalid, or in the future.
func FirstFailure(h header.Map, now time.Time) time.Time {
	return past(h.Get(header.HoldfastFirstFailure), now)
}

// past parses a time that is not after now, and returns now for any other text.
func past(text string, now time.Time) time.Time {
	t, err := header.ParseTime(text)
	if err != nil || t.After(now) {
		return now
	}
	return t
}

// Throttled counts the failures of a message that used up no retry, because attempts were limited,
// since the policy last decided.
type Throttled struct {
	Failures int
	Since    time.Time // of the first; zero before
}

// Add returns t with one more failure.
func (t Throttled) Add(now time.Time) Throttled {
	if t.Failures++; t.Failures == 1 || t.Since.IsZero() {
		t.Since = now
	}
	return t
}

// ThrottledFailures returns the failures that [DeferHeaders] wrote. A time that is invalid or in
// the future is now.
func ThrottledFailures(h header.Map, now time.Time) Throttled {
	n := count(h.Get(header.HoldfastThrottledFailures))
	if n == 0 {
		return Throttled{}
	}
	return Throttled{n, past(h.Get(header.HoldfastThrottledSince), now)}
}

const (
	maxPast     = 10       // failures
	maxPastText = 200      // bytes
	maxClass    = 100      // bytes
	maxHistory  = 32 << 10 // bytes of a header that is parsed
)

// ParseHistory parses a header [header.HoldfastHistory] or [header.HoldfastFaultHistory]. It
// returns the first failure and the latest, ten at most, oldest first; none if the header is
// invalid.
func ParseHistory(text string) []recoverability.Past {
	if len(text) > maxHistory {
		return nil
	}
	var history []recoverability.Past
	if err := strictjson.Unmarshal([]byte(text), &history); err != nil {
		return nil
	}
	return shorten(history)
}

// historyText returns the value of a history header.
func historyText(history []recoverability.Past) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(shorten(history)); err != nil { // a year of five digits
		return ""
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Past returns f as an entry of the history, with the text and the class of the fault headers.
func Past(f recoverability.Failure, fault header.Map) recoverability.Past {
	text := errtree.Cut(fault.Get(header.ExceptionMessage), maxPastText)
	return recoverability.Past{
		Time: f.Now.UTC(), Attempt: f.Attempt, Delayed: f.Delayed,
		Class: errtree.Cut(fault.Get(header.HoldfastFaultClass), maxClass),
		Text:  strings.Clone(text), Instance: f.Instance,
	}
}

// shorten removes the failures after the first, as far as there are too many.
func shorten(history []recoverability.Past) []recoverability.Past {
	if over := len(history) - maxPast; over > 0 {
		return slices.Concat(history[:1], history[1+over:])
	}
	return history
}

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
