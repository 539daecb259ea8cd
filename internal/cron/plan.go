package cron

import "time"

// NextOnGrid returns the first time after a time, strictly, on the grid that begins at first and
// has an interval of every. It is first when that is after. The result has the location of first.
// Without a positive interval there is none, and the result is the zero time.
func NextOnGrid(first time.Time, every time.Duration, after time.Time) time.Time {
	if every <= 0 {
		return time.Time{}
	}
	for at := first.Round(0); ; {
		past := after.Sub(at)
		if past < 0 {
			return at
		}
		// Sub saturates at 292 years: then another round is necessary.
		at = at.Add(past - past%every)
		if past%every == past {
			return at.Add(every)
		}
	}
}

// A Backlog is a schedule's state at a time.
type Backlog struct {
	Missed  []time.Time // occurrences that are due, the oldest first
	Dropped bool        // there are older ones than those in Missed
	Next    time.Time   // the first occurrence in future; zero when there is none
}

// Missed returns the occurrences after last, up to and including now: the latest ones, at most a
// number. It also returns the first occurrence that is after both last and now, so that a clock
// that is set back repeats none. Next returns the first occurrence strictly after a time, and the
// zero time when there is none.
//
// The work does not grow with the number of occurrences: next is called at most about 64 × most
// times.
func Missed(next func(after time.Time) time.Time, last, now time.Time, most int) Backlog {
	if now.Before(last) {
		now = last
	}
	b := Backlog{Next: next(now)}
	missed, more := upTo(next, last, now, most)
	if !more {
		b.Missed = missed
		return b
	}
	b.Dropped = true
	if most <= 0 {
		return b
	}
	// At least most occurrences are after low, and fewer are after high.
	low, high := last, now
	for high.Sub(low) > 1 {
		middle := low.Add(high.Sub(low) / 2)
		if found, more := upTo(next, middle, now, most); more || len(found) == most {
			low = middle
		} else {
			high = middle
		}
	}
	b.Missed, _ = upTo(next, low, now, most)
	return b
}

// upTo returns the first occurrences after a time, up to and including now, at most a number, and
// whether there are more.
func upTo(next func(time.Time) time.Time, after, now time.Time, most int) (due []time.Time, more bool) {
	for {
		after = next(after)
		if after.IsZero() || after.After(now) {
			return due, false
		}
		if len(due) >= most {
			return due, true
		}
		due = append(due, after)
	}
}
