package saga

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/jsonmembers"
	"github.com/holdfast-go/holdfast/internal/stateful"
)

// Saga is a set of steps that share a state S, for each key one. [New] makes one. Its methods
// configure it before [Saga.Handlers] is called; a Saga must not be changed afterwards.
type Saga[S any] struct {
	name       string
	steps      []*step[S]
	upgrades   []upgrade
	restarts   bool
	stateLimit int
	members    *jsonmembers.Type // of S
	errs       []error
}

// defaultStateLimit is the size in bytes of a state, as JSON, unless StateLimit sets another.
const defaultStateLimit = 1 << 20

// New returns a saga with the steps, of which at least one is a [Start]. The name is stored with
// each instance: it must be unique in the endpoint, and keep its value. Mistakes are errors of
// [endpoint.New].
//
// A message may have several steps: those for its type, for its base types and for interfaces. A
// Start is called before the others, which are called in their order.
//
// S is the state of an instance, and stored as JSON, which must store it completely: a struct with
// exported fields, as a rule. Members of a stored state that S has no field for, because a newer
// program has written them, are kept.
func New[S any](name string, steps ...Step[S]) *Saga[S] {
	s := &Saga[S]{name: name, stateLimit: defaultStateLimit, members: jsonmembers.Of(reflect.TypeFor[S]())}
	for i, given := range steps {
		if given == nil || reflect.ValueOf(given).IsZero() {
			s.fail("step %d is nil", i)
			continue
		}
		s.steps = append(s.steps, given.step())
	}
	return s
}

// Restarts lets a [Start] begin a new instance where the instance with its key has ended. Otherwise
// such a message is ignored, for as long as the ended instance is recorded: see
// [endpoint.Config].Remember.
func (s *Saga[S]) Restarts() *Saga[S] {
	s.restarts = true
	return s
}

// StateLimit sets the maximum size of a state, in bytes of JSON, with the members that S has no
// field for. Default: 1 MiB. A step that leaves a larger state fails.
func (s *Saga[S]) StateLimit(bytes int) *Saga[S] {
	if bytes < 1 {
		s.fail("StateLimit(%d): it must be positive", bytes)
	}
	s.stateLimit = bytes
	return s
}

// Upgrade declares that states are stored with a new version, and how a state of the version before
// becomes one of it. States have version 1 at first. The first Upgrade is for version 2, and each
// further one for the next version. A state is upgraded when it is loaded. It is stored with the
// new version when a step changes it.
//
// A process without the Upgrade fails messages for instances that were stored with the new version.
// During a rolling deployment they are retried, and another process handles them.
func (s *Saga[S]) Upgrade(version int, f func(json.RawMessage) (json.RawMessage, error)) *Saga[S] {
	next := s.version() + 1
	switch {
	case version != next:
		s.fail("Upgrade(%d): the next version is %d", version, next)
	case f == nil:
		s.fail("Upgrade(%d): the function is nil", version)
	default:
		s.upgrades = append(s.upgrades, f)
	}
	return s
}

// Handlers returns the handlers of the saga, for [endpoint.Config].Handlers. The endpoint needs an
// outbox, or the transaction mode [endpoint.SendsAtomicWithReceive], so that states and messages
// are committed together.
func (s *Saga[S]) Handlers() []endpoint.Handler {
	types, err := s.types()
	err = errors.Join(append(s.errs, err, s.check())...)
	if err != nil {
		err = fmt.Errorf("saga %q: %w", s.name, err)
	}
	declaration := stateful.Declaration{Owner: s, Kind: s.name, Err: err}
	if len(types) == 0 { // a handler reports err
		declaration.Key = func(stateful.Message) (string, error) { return "", err }
		return []endpoint.Handler{handlerOf[any](nil).Stateful(declaration)}
	}
	handlers := make([]endpoint.Handler, len(types))
	for i, t := range types {
		declaration.Func, declaration.Key = t.fn, t.lock
		handlers[i] = t.newHandler(t.handle).Stateful(declaration)
	}
	return handlers
}

// types returns the steps by message type, in the order of the steps: first the types with a Start,
// so that a message that begins an instance is for an instance that exists when a step for its base
// type, or for an interface, is called.
func (s *Saga[S]) types() ([]*messageSteps[S], error) {
	var all []*messageSteps[S]
	var errs []error
	byType := map[reflect.Type]*messageSteps[S]{}
	for _, st := range s.steps {
		if st.err != nil {
			errs = append(errs, st.err)
			continue
		}
		t := byType[st.goType]
		if t == nil {
			t = &messageSteps[S]{saga: s, fn: st.fn, newHandler: st.newHandler}
			byType[st.goType] = t
			all = append(all, t)
		}
		if err := t.add(st); err != nil {
			errs = append(errs, err)
		}
	}
	slices.SortStableFunc(all, func(a, b *messageSteps[S]) int { return a.place() - b.place() })
	return all, errors.Join(errs...)
}

// check returns the mistakes in the saga as a whole.
func (s *Saga[S]) check() error {
	errs := []error{checkState[S]()}
	starts := false
	for _, st := range s.steps {
		starts = starts || st.role == roleStart
	}
	if !starts {
		errs = append(errs, errors.New("it has no Start: no message would begin an instance"))
	}
	return errors.Join(errs...)
}

// timeout reports whether the saga has an OnTimeout for messages of a type.
func (s *Saga[S]) timeout(m any) bool {
	t := structType(reflect.TypeOf(m))
	for _, st := range s.steps {
		if st.role != roleTimeout {
			continue
		}
		if st.goType == t || st.goType.Kind() == reflect.Interface && reflect.PointerTo(t).Implements(st.goType) {
			return true
		}
	}
	return false
}

func (s *Saga[S]) fail(format string, args ...any) {
	s.errs = append(s.errs, fmt.Errorf(format, args...))
}

// structType returns the struct that t is or points to, or t.
func structType(t reflect.Type) reflect.Type {
	if t != nil && t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct {
		return t.Elem()
	}
	return t
}
