package cron

import (
	"math/bits"
	"time"
)

// A Schedule is a parsed text. It is immutable and comparable, and safe for concurrent use. The
// zero Schedule has no occurrences; Parse returns others.
type Schedule struct {
	second, minute, hour, day, month, weekday uint64 // bit n is set when the value n fits

	anyDay, anyWeekday bool // that field restricts nothing

	// elapsed is set when the minute or the hour has a wildcard or a step: such a schedule has an
	// occurrence whenever the clock on the wall fits, however often it shows a time. Others are
	// schedules of fixed times.
	elapsed bool
}

const (
	day = 24 * 60 * 60

	// most is the time, in seconds, in which Next looks for an occurrence. 29 February is at most
	// eight years away.
	most = 10 * 366 * day

	// widest is more than two zones can be apart, in seconds: a clock that is set back by a change
	// of its zone shows a later time than ever before after at most so long.
	widest = 2 * day
)

// Next returns the first occurrence that is strictly after a time, by the wall clock of a zone. It
// returns the zero time when there is none within ten years. The result is in zone and has no
// fraction of a second.
//
// A change of the zone's offset to UTC is treated as ISC cron treats it. Times that are fixed,
// which means that neither the minute nor the hour has a wildcard or a step, have an occurrence at
// the end of the gap if the clock skips them, one in all for each gap; and an occurrence the first
// time only if the clock shows them twice. Others follow elapsed time: they have no occurrence at a
// time that is skipped, and two at one that is shown twice.
func (s Schedule) Next(after time.Time, zone *time.Location) time.Time {
	if s.second == 0 {
		return time.Time{}
	}
	from := after.Unix() + 1
	var at int64
	var ok bool
	if s.elapsed {
		at, ok = s.nextElapsed(from, zone)
	} else {
		at, ok = s.nextFixed(from, zone)
	}
	if !ok {
		return time.Time{}
	}
	return time.Unix(at, 0).In(zone)
}

// nextElapsed returns the first second, not before from, at which the wall clock fits.
func (s Schedule) nextElapsed(from int64, zone *time.Location) (int64, bool) {
	for at := from; at < from+most; {
		offset, _, end := period(at, zone)
		wall, ok := s.nextWall(at + offset)
		if !ok {
			return 0, false
		}
		if wall-offset < end {
			return wall - offset, true
		}
		at = end
	}
	return 0, false
}

// nextFixed returns the first second, not before from, at which the wall clock reaches or passes a
// time that fits and that it had neither reached nor passed before.
func (s Schedule) nextFixed(from int64, zone *time.Location) (int64, bool) {
	wall, ok := s.nextWall(furthest(from-1, zone) + 1)
	if !ok {
		return 0, false
	}
	for at := max(from, wall-widest); ; {
		offset, _, end := period(at, zone)
		if at = max(at, wall-offset); at < end {
			return at, true
		}
		at = end
	}
}

// furthest returns the latest time that the wall clock has shown up to a second.
func furthest(at int64, zone *time.Location) int64 {
	offset, start, _ := period(at, zone)
	latest := at + offset
	for oldest := at - widest; start > oldest; {
		end := start - 1
		offset, start, _ = period(end, zone)
		latest = max(latest, end+offset)
	}
	return latest
}

// period returns a zone's offset to UTC at a second, in seconds, and the seconds of which it is
// true: from start until before end.
func period(at int64, zone *time.Location) (offset, start, end int64) {
	t := time.Unix(at, 0).In(zone)
	_, seconds := t.Zone()
	from, until := t.ZoneBounds()
	start, end = at-2*most, at+2*most
	if !from.IsZero() {
		start = from.Unix()
	}
	if !until.IsZero() {
		end = until.Unix()
	}
	if end <= at {
		// On the last day of a leap year that a rule extends to, ZoneBounds returns the day's begin
		// in UTC.
		end = at - at%day + day
	}
	return int64(seconds), start, end
}

// nextWall returns the first time of a wall clock, not before from, that fits. Such times are
// seconds since 1 January 1970 of that clock.
func (s Schedule) nextWall(from int64) (int64, bool) {
	date := time.Unix(from, 0).UTC()
	year, month, dayOfMonth := date.Date()
	hour, minute, second := date.Clock()
	date = time.Date(year, month, dayOfMonth, 0, 0, 0, 0, time.UTC)
	if s.fits(date) {
		if in, ok := s.nextInDay(hour, minute, second); ok {
			return date.Unix() + in, true
		}
	}
	in, _ := s.nextInDay(0, 0, 0)
	for date = date.AddDate(0, 0, 1); date.Unix() < from+most; {
		if s.month&(1<<date.Month()) == 0 {
			date = time.Date(date.Year(), date.Month()+1, 1, 0, 0, 0, 0, time.UTC)
			continue
		}
		if s.fits(date) {
			return date.Unix() + in, true
		}
		date = date.AddDate(0, 0, 1)
	}
	return 0, false
}

func (s Schedule) fits(date time.Time) bool {
	if s.month&(1<<date.Month()) == 0 {
		return false
	}
	onDay, onWeekday := s.day&(1<<date.Day()) != 0, s.weekday&(1<<date.Weekday()) != 0
	if s.anyDay || s.anyWeekday {
		return onDay && onWeekday
	}
	return onDay || onWeekday
}

// nextInDay returns the first second of a day that fits and is not before a time of that day.
func (s Schedule) nextInDay(hour, minute, second int) (int64, bool) {
	firstMinute, firstSecond := bits.TrailingZeros64(s.minute), bits.TrailingZeros64(s.second)
	h, ok := from(s.hour, hour)
	if !ok {
		return 0, false
	}
	m, sec := firstMinute, firstSecond
	if h == hour {
		if m, sec, ok = s.nextInHour(minute, second); !ok {
			if h, ok = from(s.hour, hour+1); !ok {
				return 0, false
			}
			m, sec = firstMinute, firstSecond
		}
	}
	return int64(h*3600 + m*60 + sec), true
}

func (s Schedule) nextInHour(minute, second int) (m, sec int, ok bool) {
	if s.minute&(1<<minute) != 0 {
		if sec, ok = from(s.second, second); ok {
			return minute, sec, true
		}
	}
	m, ok = from(s.minute, minute+1)
	return m, bits.TrailingZeros64(s.second), ok
}

// from returns the lowest value of a set that is not below low.
func from(set uint64, low int) (int, bool) {
	v := low + bits.TrailingZeros64(set>>low)
	return v, v < 64
}
