package errorqueue

import (
	"slices"
	"strings"
	"time"
)

// Filter selects messages. A message has to match each field that is set, and one element of a
// list. The zero value selects all.
type Filter struct {
	IDs       []string
	Classes   []string // without regard to case
	Types     []string // full names, or what follows the last dot
	Endpoints []string
	Queues    []string // that they failed in
	// Since and Until bound the time of failure; Until is excluded. A message without that time
	// matches no bound.
	Since, Until time.Time
	Text         string // in the error or its stack, without regard to case
	// Failed leaves control messages out unless IDs names them: the acknowledgements that
	// ServiceControl reads from an error queue are no failures.
	Failed bool
}

// All reports whether every message matches.
func (f *Filter) All() bool {
	return len(f.IDs)+len(f.Classes)+len(f.Types)+len(f.Endpoints)+len(f.Queues) == 0 &&
		f.Since.IsZero() && f.Until.IsZero() && f.Text == ""
}

// named returns f with the short names of its queues.
func (f Filter) named(shortName func(address string) string) Filter {
	f.Queues = slices.Clone(f.Queues)
	for i := range f.Queues {
		f.Queues[i] = shortName(f.Queues[i])
	}
	return f
}

// Fits reports whether the message of e matches.
func (f *Filter) Fits(e *Entry) bool {
	return (!f.Failed || !e.control || len(f.IDs) > 0) &&
		anyOf(f.IDs, func(id string) bool { return id == e.ID }) &&
		anyOf(f.Classes, func(class string) bool { return strings.EqualFold(class, e.Class) }) &&
		anyOf(f.Types, func(name string) bool {
			return slices.ContainsFunc(e.types, func(full string) bool {
				return full == name || strings.HasSuffix(full, "."+name)
			})
		}) &&
		anyOf(f.Endpoints, func(name string) bool { return name == e.Endpoint }) &&
		anyOf(f.Queues, func(name string) bool { return name == e.Queue }) &&
		(f.Since.IsZero() || !e.FailedAt.IsZero() && !e.FailedAt.Before(f.Since)) &&
		(f.Until.IsZero() || !e.FailedAt.IsZero() && e.FailedAt.Before(f.Until)) &&
		(f.Text == "" || slices.ContainsFunc([]string{e.Error, e.stack, e.Undecodable}, func(text string) bool {
			return strings.Contains(strings.ToLower(text), strings.ToLower(f.Text))
		}))
}

// anyOf reports whether an element matches, or there is none.
func anyOf(wanted []string, is func(string) bool) bool {
	return len(wanted) == 0 || slices.ContainsFunc(wanted, is)
}
