// Package pipeline is the chain that every message runs through: stages made of
// behaviors, each wrapped around the next.
//
// A [Behavior] is the one extension concept of Holdfast: a function that gets the
// next step and returns a step of its own, as HTTP middleware does. What it may
// see and change is the value of its [Stage].
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Func is a step: it works on the stage's value and returns an error to fail the message.
type Func[T any] func(ctx context.Context, in T) error

// Behavior wraps a step around the next one. It is called once, when the
// endpoint is made; the Func that it returns is called for every message, by many
// goroutines at once. Not calling next ends the stage early, without an error.
//
// Calling next again tries what comes after once more, for instance when it failed. For a received
// message that ends when it has left: once the Dispatch or Recover stage has sent and settled,
// next returns an error and does nothing.
type Behavior[T any] func(next Func[T]) Func[T]

// Stage is an ordered list of named behaviors over one kind of value. The zero
// value is empty and ready to use. The first behavior is the outermost.
//
// A stage is put together before an endpoint is made of it, by one goroutine.
// Methods that change it do not fail on the spot: what was wrong comes out,
// joined, of [Stage.Then].
type Stage[T any] struct {
	steps []step[T]
	errs  []error
}

type step[T any] struct {
	name     string
	behavior Behavior[T]
}

// Use adds a behavior at the end, next to the handlers. The name must be new.
func (s *Stage[T]) Use(name string, b Behavior[T]) { s.insert(len(s.steps), name, b) }

// Before adds a behavior on the outer side of the one called anchor.
func (s *Stage[T]) Before(anchor, name string, b Behavior[T]) {
	if i, ok := s.find(anchor, "to put %q before", name); ok {
		s.insert(i, name, b)
	}
}

// After adds a behavior on the inner side of the one called anchor.
func (s *Stage[T]) After(anchor, name string, b Behavior[T]) {
	if i, ok := s.find(anchor, "to put %q after", name); ok {
		s.insert(i+1, name, b)
	}
}

// Replace puts another behavior in the place of the named one, which keeps its name.
func (s *Stage[T]) Replace(name string, b Behavior[T]) {
	i, ok := s.find(name, "to replace")
	if !ok || !s.usable(name, b) {
		return
	}
	s.own()
	s.steps[i].behavior = b
}

// Remove takes the named behavior out.
func (s *Stage[T]) Remove(name string) {
	if i, ok := s.find(name, "to remove"); ok {
		s.own()
		s.steps = slices.Delete(s.steps, i, i+1)
	}
}

// Names are the names of the behaviors, outermost first.
func (s *Stage[T]) Names() []string {
	names := make([]string, len(s.steps))
	for i, st := range s.steps {
		names[i] = st.name
	}
	return names
}

// Then composes the behaviors around end, once. Calling the result allocates
// nothing by itself. The error holds everything that was wrong with how the
// stage was put together, and the behaviors that returned nil.
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

// find looks for the named behavior; purpose, a format, says in the error what for.
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
