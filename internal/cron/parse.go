// Package cron parses the texts of cron schedules and computes their occurrences, and those of a
// grid of equal intervals. It is pure: it reads no clock and starts no goroutine.
package cron

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// A field is one of the six parts of a text: its name in errors, its bounds and the names of its
// values, from the lowest value on.
type field struct {
	name     string
	min, max uint
	names    []string
	question bool // "?" stands for "*"
}

var fields = [6]field{
	{name: "second", max: 59},
	{name: "minute", max: 59},
	{name: "hour", max: 23},
	{name: "day of month", min: 1, max: 31, question: true},
	{name: "month", min: 1, max: 12, names: []string{
		"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
	}},
	{name: dayOfWeek, max: 7, names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}, question: true},
}

const dayOfWeek = "day of week"

// A set holds the values of a field as bits.
type set struct {
	values uint64
	all    bool // an item is "*", "?" or "*/1"
	steps  bool // an item has a wildcard or a step
}

// Parse returns the schedule of a text of five fields: minute, hour, day of month, month and day of
// week; or six, with the second before them. Without a second it is 0.
//
// A field is a list, separated by commas, of values, ranges (1-5), wildcards (*) and steps (*/15,
// 10-30/5; 10/5 begins at 10 and ends at the field's maximum). Months and days of the week have
// names of three letters in any case; 0 and 7 are Sunday. In the two fields for days "?" is "*".
// When both are restricted, a day fits that fits one of them; a field is restricted unless an item
// of it is "*", "?" or "*/1". There is no L, W, # or @daily, and no zone.
//
// An error names the field and the value. A date that no year has, such as 30 February, is an
// error.
func Parse(spec string) (Schedule, error) {
	s, err := parse(spec)
	if err != nil {
		return Schedule{}, fmt.Errorf("cron %q: %w", spec, err)
	}
	return s, nil
}

func parse(spec string) (Schedule, error) {
	texts := strings.Fields(spec)
	switch {
	case strings.HasPrefix(spec, "@"):
		return Schedule{}, errors.New("descriptors such as @daily are not supported: write the fields, such as 0 0 * * *")
	case len(texts) > 0 && strings.Contains(texts[0], "="):
		return Schedule{}, fmt.Errorf("%q is no field: a zone is not a part of the text", texts[0])
	case len(texts) == 5:
		texts = append([]string{"0"}, texts...)
	case len(texts) != 6:
		return Schedule{}, fmt.Errorf("%d fields: want minute, hour, day of month, month and day of week, "+
			"or six with the second before them", len(texts))
	}
	var sets [6]set
	var errs []error
	for i, f := range fields {
		var err error
		if sets[i], err = f.parse(texts[i]); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Schedule{}, err
	}
	s := Schedule{
		second: sets[0].values, minute: sets[1].values, hour: sets[2].values,
		day: sets[3].values, month: sets[4].values, weekday: sets[5].values,
		anyDay: sets[3].all, anyWeekday: sets[5].all,
		elapsed: sets[1].steps || sets[2].steps,
	}
	if s.weekday&(1<<7) != 0 {
		s.weekday = s.weekday&^(1<<7) | 1
	}
	if !s.reachable() {
		return Schedule{}, fmt.Errorf("day of month %q: no month of %q has such a day", texts[3], texts[4])
	}
	return s, nil
}

// reachable reports whether a year has a date of s.
func (s Schedule) reachable() bool {
	if !s.anyWeekday {
		return true
	}
	first := bits.TrailingZeros64(s.day)
	longest := [...]int{1: 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
	for month := 1; month <= 12; month++ {
		if s.month&(1<<month) != 0 && first <= longest[month] {
			return true
		}
	}
	return false
}

func (f field) parse(text string) (set, error) {
	var all set
	for item := range strings.SplitSeq(text, ",") {
		s, err := f.item(item)
		if err != nil {
			if item != text {
				return set{}, fmt.Errorf("%s %q: %w", f.name, text, err)
			}
			return set{}, fmt.Errorf("%s: %w", f.name, err)
		}
		all.values |= s.values
		all.all = all.all || s.all
		all.steps = all.steps || s.steps
	}
	return all, nil
}

func (f field) item(text string) (set, error) {
	body, stepText, stepped := strings.Cut(text, "/")
	step := uint64(1)
	if stepped {
		var err error
		if step, err = strconv.ParseUint(stepText, 10, 32); err != nil || step == 0 {
			return set{}, fmt.Errorf("%q has the step %q: want a number above 0", text, stepText)
		}
		if step > uint64(f.max) {
			return set{}, fmt.Errorf("%q has the step %d: want at most %d; a longer interval is not a step of this field",
				text, step, f.max)
		}
	}
	wildcard := body == "*" || body == "?" && f.question
	low, high := f.min, f.max
	if wildcard && f.name == dayOfWeek {
		high = 6 // a step counts Sunday once
	}
	if !wildcard {
		var err error
		if low, high, err = f.span(text, body, stepped); err != nil {
			return set{}, err
		}
	}
	s := set{all: wildcard && step == 1, steps: wildcard || stepped}
	for v := uint64(low); v <= uint64(high); v += step {
		s.values |= 1 << v
	}
	return s, nil
}

// span returns the lowest and the highest value of a range or a value; one with a step ends at the
// field's maximum.
func (f field) span(text, body string, stepped bool) (low, high uint, err error) {
	from, to, ranged := strings.Cut(body, "-")
	if low, err = f.value(text, from); err != nil {
		return 0, 0, err
	}
	switch {
	case ranged:
		if high, err = f.value(text, to); err != nil {
			return 0, 0, err
		}
	case stepped && f.name == dayOfWeek:
		return low % 7, 6, nil
	case stepped:
		return low, f.max, nil
	default:
		return low, low, nil
	}
	if f.name == dayOfWeek {
		if high == 0 && low > 0 {
			high = 7 // FRI-SUN
		} else if low == 7 && high < 7 {
			low = 0
		}
	}
	if low > high {
		return 0, 0, fmt.Errorf("range %q begins after its end: write two ranges, such as %s-%d,%d-%s", body, from, f.max, f.min, to)
	}
	return low, high, nil
}

func (f field) value(item, text string) (uint, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + uint(i), nil
		}
	}
	v, err := strconv.ParseUint(text, 10, 32)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && (v < uint64(f.min) || v > uint64(f.max)):
		return 0, fmt.Errorf("%s is not in %d-%d", text, f.min, f.max)
	case err == nil:
		return uint(v), nil
	case item == "":
		return 0, errors.New("an item is empty")
	case text == "?":
		return 0, errors.New(`"?" is for days only: write "*"`)
	case text == "*":
		return 0, fmt.Errorf(`%q has "*" in a range: write "*" alone, or with a step, such as */2`, item)
	case f.names != nil:
		return 0, fmt.Errorf("%q is neither a number in %d-%d nor one of %s", text, f.min, f.max, strings.Join(f.names, ", "))
	}
	return 0, fmt.Errorf("%q is not a number in %d-%d", text, f.min, f.max)
}
