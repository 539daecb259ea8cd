package transport

import (
	"io"
	"sync"
)

// Shared holds values that the connections of several endpoints share, such as a pool of network
// connections. The endpoints of one call of RunAll have one Shared, in [Env]. The zero value is
// empty and ready for use. Its methods are safe for concurrent use, and so is [Share].
type Shared struct {
	mu      sync.Mutex
	entries map[any]*shared
}

// shared is one value with its users.
type shared struct {
	mu    sync.Mutex // held while the value is opened or closed
	value io.Closer
	users int
}

// Share returns the value of key in s. The first caller opens the value, others wait for it, and
// the value is closed when each of them has called release once. key is comparable, and of a type
// of the driver's own, so that drivers do not collide. If open fails, Share returns its error, and
// the next caller opens anew. If s is nil the value is the caller's alone.
func Share[T io.Closer](s *Shared, key any, open func() (T, error)) (value T, release func() error, err error) {
	if s == nil {
		value, err = open()
		if err != nil {
			return value, nil, err
		}
		return value, value.Close, nil
	}
	e := s.enter(key)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.value == nil {
		opened, err := open()
		if err != nil {
			s.leave(key, e)
			return value, nil, err
		}
		e.value = opened
	}
	value = e.value.(T) //nolint:errcheck,forcetypeassert // the key is of the driver's type, so the value is too
	return value, sync.OnceValue(func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !s.leave(key, e) {
			return nil
		}
		return e.value.Close()
	}), nil
}

// enter adds a user of key.
func (s *Shared) enter(key any) *shared {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries = map[any]*shared{}
	}
	if s.entries[key] == nil {
		s.entries[key] = &shared{}
	}
	s.entries[key].users++
	return s.entries[key]
}

// leave removes a user of key, and reports whether that was the last one.
func (s *Shared) leave(key any, e *shared) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.users--; e.users == 0 {
		delete(s.entries, key)
	}
	return e.users == 0
}
