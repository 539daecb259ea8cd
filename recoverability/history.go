package recoverability

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

// Past is an earlier failure of a message.
type Past struct {
	Time     time.Time `json:"t"`
	Attempt  int       `json:"n,omitempty"` // in its cycle, from 1; 0 where it is not known
	Delayed  int       `json:"d,omitempty"` // delayed retries before it
	Class    string    `json:"c"`           // the kind of error: what Class says
	Text     string    `json:"e"`           // the beginning of what the error said
	Instance string    `json:"i,omitempty"` // the process
}

const (
	maxPast     = 10
	maxPastText = 200      // bytes
	maxHistory  = 32 << 10 // bytes of a header that is believed
)

// ParseHistory reads a header [header.HoldfastHistory] or [header.HoldfastFaultHistory]: nothing
// where it makes no sense. It holds the first failure and the latest, ten at most, oldest first.
func ParseHistory(text string) []Past {
	if len(text) > maxHistory {
		return nil
	}
	var past []Past
	if err := json.Unmarshal([]byte(text), &past); err != nil {
		return nil
	}
	return shorten(past)
}

// historyText is the value of a history header.
func historyText(past []Past) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(shorten(past)); err != nil { // a year of five digits
		return ""
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Past is f as an entry of the history, with text and class as the fault headers tell them.
func (f Failure) Past(fault header.Map) Past {
	return Past{
		Time: f.Now.UTC(), Attempt: f.Attempt, Delayed: f.Delayed,
		Class: cut(fault.Get(header.HoldfastFaultClass), maxClass),
		Text:  strings.Clone(cut(fault.Get(header.ExceptionMessage), maxPastText)), Instance: f.Instance,
	}
}

// shorten leaves out what followed the first failure.
func shorten(past []Past) []Past {
	if over := len(past) - maxPast; over > 0 {
		return slices.Concat(past[:1], past[1+over:])
	}
	return past
}
