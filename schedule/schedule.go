package schedule

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/cron"
	"github.com/holdfast-go/holdfast/internal/jsonloss"
	"github.com/holdfast-go/holdfast/internal/strictjson"
)

// Schedule is a message with the times at which it is sent. Exactly one of Cron, Every and After is
// set.
type Schedule struct {
	// Name is the key of the schedule in the database: unique in the endpoint, 1 to 200 bytes. A
	// schedule with another name is another schedule.
	Name string
	// Cron names the times, in five fields (minute, hour, day of month, month, day of week) or six
	// with seconds in front. Times of the day that summer time skips are due when it begins; those
	// that it repeats are due once. Minutes or hours that begin with * follow the elapsed time.
	Cron string
	// Zone is the time zone of Cron, such as Europe/Berlin. Default: UTC.
	Zone string
	// Every is an interval of at least a second. The times are multiples of it, counted from the
	// first, which is one interval after the schedule was first seen.
	Every time.Duration
	// After is the time, at least a second, from the end of a run to the next one. The first is
	// that time after the schedule was first seen.
	After time.Duration
	// Message is sent at each time: a value of a registered command, which must not be changed.
	// JSON must store its type completely.
	Message any
	// Missed is what happens to occurrences that were missed. Default: RunOnce.
	Missed Missed
	// Overlap is what happens to an occurrence while the last one has not ended. Default:
	// SkipOverlap.
	Overlap Overlap
}

// Missed is the treatment of occurrences that were due while no instance ran, or were due together
// with a later one.
type Missed int

// The treatments of missed occurrences.
const (
	RunOnce    Missed = iota // run the last one, and count the others
	SkipMissed               // count them all
	CatchUp                  // run the last 100, and count the others; with SkipOverlap each waits until the last has ended
)

// maxCatchUp is the number of missed occurrences that CatchUp runs.
const maxCatchUp = 100

// String returns the name of the treatment.
func (m Missed) String() string {
	if m < RunOnce || m > CatchUp {
		return fmt.Sprintf("Missed(%d)", int(m))
	}
	return [...]string{"RunOnce", "SkipMissed", "CatchUp"}[m]
}

// Overlap is the treatment of an occurrence that is due while an earlier one is queued, running or
// waiting for a retry.
type Overlap int

// The treatments of overlapping occurrences.
const (
	SkipOverlap  Overlap = iota // it is skipped
	AllowOverlap                // it is run
)

// String returns the name of the treatment.
func (o Overlap) String() string {
	if o < SkipOverlap || o > AllowOverlap {
		return fmt.Sprintf("Overlap(%d)", int(o))
	}
	return [...]string{"SkipOverlap", "AllowOverlap"}[o]
}

const (
	maxName     = 200
	minInterval = time.Second
)

func (s *Schedule) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("schedule %.200q: "+format, append([]any{s.Name}, args...)...))
	}
	switch {
	case s.Name == "":
		bad("the name is empty")
	case len(s.Name) > maxName:
		bad("the name has %d bytes, and at most %d are allowed", len(s.Name), maxName)
	case !utf8.ValidString(s.Name) || strings.ContainsFunc(s.Name, unicode.IsControl):
		bad("the name has a control character or invalid UTF-8")
	}
	kinds := 0
	for _, set := range []bool{s.Cron != "", s.Every != 0, s.After != 0} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		bad("set exactly one of Cron, Every and After")
	}
	if s.Zone != "" && s.Cron == "" {
		bad("Zone is for Cron")
	}
	for name, d := range map[string]time.Duration{"Every": s.Every, "After": s.After} {
		if d != 0 && d < minInterval {
			bad("%s is %v: it must be at least %v", name, d, minInterval)
		}
	}
	if t := reflect.TypeOf(s.Message); t == nil || t.Kind() == reflect.Pointer && reflect.ValueOf(s.Message).IsNil() {
		bad("Message is nil")
	} else if err := jsonloss.Check(structOf(t)); err != nil {
		bad("Message is not sent completely: %w", err)
	}
	if s.Missed < RunOnce || s.Missed > CatchUp {
		bad("Missed is %v: use RunOnce, SkipMissed or CatchUp", s.Missed)
	}
	if s.Overlap < SkipOverlap || s.Overlap > AllowOverlap {
		bad("Overlap is %v: use SkipOverlap or AllowOverlap", s.Overlap)
	}
	if kinds == 1 {
		if _, err := s.spec().times(); err != nil {
			bad("%w", err)
		}
	}
	return errors.Join(errs...)
}

// spec is the part of a schedule that is stored with its plan. Each instance can go on with the
// plan by it.
type spec struct {
	Cron    string        `json:"cron,omitempty"`
	Zone    string        `json:"zone,omitempty"`
	Every   time.Duration `json:"every,omitempty"`
	After   time.Duration `json:"after,omitempty"`
	Missed  Missed        `json:"missed,omitempty"`
	Overlap Overlap       `json:"overlap,omitempty"`
}

func (s *Schedule) spec() spec { return spec{s.Cron, s.Zone, s.Every, s.After, s.Missed, s.Overlap} }

// text returns the spec as JSON.
func (s spec) text() string {
	text, _ := json.Marshal(s) // a struct of texts and numbers
	return string(text)
}

func parseSpec(text string) (s spec, err error) {
	if err := strictjson.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("its stored spec is damaged: %w", err)
	}
	return s, nil
}

// String describes the times for people.
func (s spec) String() string {
	switch {
	case s.Every != 0:
		return "every " + s.Every.String()
	case s.After != 0:
		return s.After.String() + " after the last run"
	case s.Zone != "":
		return s.Cron + " in " + s.Zone
	}
	return s.Cron
}

// times are the times of a schedule by Cron or Every.
type times struct {
	spec spec
	cron cron.Schedule
	zone *time.Location
}

func (s spec) times() (t times, err error) {
	t.spec, t.zone = s, time.UTC
	if s.Cron == "" {
		return t, nil
	}
	t.cron, err = cron.Parse(s.Cron)
	if err != nil {
		return t, err
	}
	if s.Zone == "Local" {
		return t, errors.New("the zone Local differs between machines: name one, such as Europe/Berlin")
	}
	if t.zone, err = time.LoadLocation(s.Zone); err != nil {
		return t, fmt.Errorf("the zone %.100q is unknown: %w: on a machine without zones, import time/tzdata", s.Zone, err)
	}
	return t, nil
}

// next returns the first time after another; the zero Time if there is none. first is where the
// grid of Every begins.
func (t times) next(first, after time.Time) time.Time {
	if t.spec.Every > 0 {
		return cron.NextOnGrid(first, t.spec.Every, after).UTC()
	}
	next := t.cron.Next(after, t.zone)
	if next.IsZero() {
		return next
	}
	return next.UTC()
}
