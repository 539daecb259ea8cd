// Package timer has the names of timers: messages with a delay that are replaced and cancelled by
// name. The stored name contains the owner of the timer, so that those of two owners never are the
// same.
package timer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxName is the longest name and the longest key of an owner, in bytes.
const MaxName = 500

// Name is the name of a timer with its owner. The zero Kind and Key are those of the application,
// whose handlers and senders use [endpoint.TimerName].
//
// [endpoint.TimerName]: https://pkg.go.dev/github.com/holdfast-go/holdfast/endpoint#TimerName
type Name struct {
	Kind string // of the owner, such as the kind of a saga's records
	Key  string // of the owner within its kind
	Name string
}

// Validate returns an error for a name that no timer can have.
func (n Name) Validate() error {
	switch {
	case n.Name == "":
		return errors.New("the name of the timer is empty")
	case len(n.Name) > MaxName:
		return fmt.Errorf("the name of the timer has %d bytes: it must have at most %d", len(n.Name), MaxName)
	case !utf8.ValidString(n.Name):
		return errors.New("the name of the timer is not valid UTF-8")
	case len(n.Key) > MaxName || !utf8.ValidString(n.Key) || !utf8.ValidString(n.Kind):
		return fmt.Errorf("the owner of timer %q is not valid: its key must have at most %d bytes of UTF-8", n.Name, MaxName)
	}
	return nil
}

// Text returns the stored name. Different names have different texts.
func (n Name) Text() string {
	return fmt.Sprintf("%d,%d:%s%s%s", len(n.Kind), len(n.Key), n.Kind, n.Key, n.Name)
}

var errText = errors.New("it is no stored name of a timer")

// Parse returns the name whose Text is text.
func Parse(text string) (Name, error) {
	sizes, rest, _ := strings.Cut(text, ":")
	first, second, _ := strings.Cut(sizes, ",")
	kind, err := strconv.Atoi(first)
	key, err2 := strconv.Atoi(second)
	if err != nil || err2 != nil || kind < 0 || key < 0 || kind > len(rest) || key > len(rest)-kind {
		return Name{}, errText
	}
	n := Name{Kind: rest[:kind], Key: rest[kind : kind+key], Name: rest[kind+key:]}
	if n.Text() != text {
		return Name{}, errText
	}
	return n, nil
}

// String returns the name for people.
func (n Name) String() string {
	if n.Kind == "" && n.Key == "" {
		return n.Name
	}
	return fmt.Sprintf("%s of %s %q", n.Name, n.Kind, n.Key)
}
