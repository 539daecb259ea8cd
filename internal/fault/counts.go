package fault

import (
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

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
