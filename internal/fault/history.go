package fault

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/strictjson"
	"github.com/holdfast-go/holdfast/recoverability"
)

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
