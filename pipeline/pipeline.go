// Package pipeline is the chain that every message runs through: stages made of behaviors, each
// wrapped around the next.
//
// A [Behavior] is the one extension concept of Holdfast: a function that takes the next step and
// returns a step, as HTTP middleware does. It may read and change the value of its [Stage].
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Func is a step. An error that it returns fails the message.
type Func[T any] func(ctx context.Context, in T) error

// Behavior wraps a step around the next one. It is called once, when the endpoint is made; the Func
// that it returns is called for every message, by many goroutines at once. Without a call of next
// the stage ends early, without an error.
//
// A second call of next runs the following steps again, for instance after a failure. Once the
// Dispatch or Recover stage of a received message has sent and settled, next returns an error and
// does nothing.
type Behavior[T any] func(next Func[T]) Func[T]

// Stage is an ordered list of named behaviors for one type of value. The zero value is empty and
// ready to use. The first behavior is the outermost.
//
// A stage is composed by one goroutine before an endpoint is made. The errors of methods that
// change it are returned, joined, by [Stage.Then].
type Stage[T any] struct {
	steps []step[T]
	errs  []error
}

type step[T any] struct {
	name     string
	behavior Behavior[T]
}

// Use adds a behavior at the end, next to the handlers. The name must be unused.
func (s *Stage[T]) Use(name string, b Behavior[T]) { s.insert(len(s.steps), name, b) }

// Before adds a behavior directly outside of the one named anchor.
func (s *Stage[T]) Before(anchor, name string, b Behavior[T]) {
	if i, ok := s.find(anchor, "to put %q before", name); ok {
		s.insert(i, name, b)
	}
}

// After adds a behavior directly inside of the one named anchor.
func (s *Stage[T]) After(anchor, name string, b Behavior[T]) {
	if i, ok := s.find(anchor, "to put %q after", name); ok {
		s.insert(i+1, name, b)
	}
}

// Replace replaces the named behavior and keeps its name and place.
func (s *Stage[T]) Replace(name string, b Behavior[T]) {
	i, ok := s.find(name, "to replace")
	if !ok || !s.usable(name, b) {
		return
	}
	s.own()
	s.steps[i].behavior = b
}

// Remove removes the named behavior.
func (s *Stage[T]) Remove(name string) {
	if i, ok := s.find(name, "to remove"); ok {
		s.own()
		s.steps = slices.Delete(s.steps, i, i+1)
	}
}

// Names returns the names of the behaviors, outermost first.
func (s *Stage[T]) Names() []string {
	names := make([]string, len(s.steps))
	for i, st := range s.steps {
		names[i] = st.name
	}
	return names
}

// Then composes the behaviors around end, once. A call of the result allocates nothing by itself.
// The error joins the errors of all methods that changed the stage, and one for each behavior that
// returned nil.
func (s *Stage[T]) Then(end Func[T]) (Func[T], error) {
	if end == nil {
		return nil, errors.Join(errors.Join(s.errs...), errors.New("nil is no end of a stage"))
	}
	errs := slices.Clone(s.errs)
	f := end
	for _, st := range slices.Backward(s.steps) {
		outer := st.behavior(f)
		if outer == nil {
			errs = append(errs, fmt.Errorf("behavior %q returned no function", st.name))
			continue
		}
		f = outer
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return f, nil
}

func (s *Stage[T]) insert(at int, name string, b Behavior[T]) {
	if !s.usable(name, b) {
		return
	}
	if s.index(name) >= 0 {
		s.fail("behavior %q is there already: use Replace, or another name", name)
		return
	}
	s.own()
	s.steps = slices.Insert(s.steps, at, step[T]{name, b})
}

// own gives s a copy of its steps, so that a Stage may be copied and changed.
func (s *Stage[T]) own() { s.steps = slices.Clone(s.steps) }

func (s *Stage[T]) usable(name string, b Behavior[T]) bool {
	switch {
	case name == "":
		s.fail("a behavior has no name")
	case b == nil:
		s.fail("behavior %q is nil", name)
	default:
		return true
	}
	return false
}

func (s *Stage[T]) index(name string) int {
	return slices.IndexFunc(s.steps, func(st step[T]) bool { return st.name == name })
}

// find returns the index of the named behavior. purpose, a format, is for the error.
func (s *Stage[T]) find(name, purpose string, args ...any) (int, bool) {
	i := s.index(name)
	if i < 0 {
		s.fail("there is no behavior %q %s: there are %q", name, fmt.Sprintf(purpose, args...), s.Names())
	}
	return i, i >= 0
}

func (s *Stage[T]) fail(format string, args ...any) {
	s.errs = append(slices.Clone(s.errs), fmt.Errorf(format, args...))
}

// SendOption sets a field of a message that is sent. Package endpoint has the options.
type SendOption interface{ ApplySend(out *Outgoing) }

// PublishOption sets a field of an event that is published.
type PublishOption interface{ ApplyPublish(out *Outgoing) }

// ReplyOption sets a field of a reply.
type ReplyOption interface{ ApplyReply(out *Outgoing) }
