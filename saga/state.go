package saga

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/holdfast-go/holdfast/internal/jsonloss"
	"github.com/holdfast-go/holdfast/internal/strictjson"
)

// upgrade turns a state of one version into one of the next.
type upgrade = func(json.RawMessage) (json.RawMessage, error)

// version returns the version with which states are stored.
func (s *Saga[S]) version() int { return len(s.upgrades) + 1 }

// decode returns the state of an instance that was stored with a version, and the text of the state
// in the version of s.
func (s *Saga[S]) decode(stored json.RawMessage, version int) (state S, upgraded json.RawMessage, err error) {
	if version > s.version() {
		return state, nil, fmt.Errorf("its state was stored with version %d, and this program has version %d: "+
			"it was stored by a newer program", version, s.version())
	}
	upgraded = stored
	for v := version; v < s.version(); v++ {
		if upgraded, err = s.upgrades[v-1](upgraded); err != nil {
			return state, nil, fmt.Errorf("its state, stored with version %d, cannot be upgraded to version %d: %w", version, v+1, err)
		}
	}
	if err := strictjson.Unmarshal(upgraded, &state); err != nil {
		return state, nil, fmt.Errorf("its state, stored with version %d, does not decode as version %d: %w: "+
			"add an Upgrade to the saga when its state changes its form", version, s.version(), err)
	}
	return state, upgraded, nil
}

// encode returns a state as JSON, with the unknown members of the text that it was decoded from.
func (s *Saga[S]) encode(state *S, from json.RawMessage) (json.RawMessage, error) {
	text, err := json.Marshal(state)
	if err == nil {
		err = strictjson.Valid(text) // of a RawMessage, which Marshal does not look into
	}
	if err == nil {
		text, err = s.keepUnknown(from, text)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("its state cannot be stored: %w", err)
	case len(text) > s.stateLimit:
		return nil, fmt.Errorf("its state has %d bytes as JSON, and at most %d are allowed: "+
			"store large data elsewhere, or set StateLimit", len(text), s.stateLimit)
	}
	return text, nil
}

// keepUnknown returns the text of a state with the unknown members of the text that the state was
// decoded from.
func (s *Saga[S]) keepUnknown(from, text json.RawMessage) (json.RawMessage, error) {
	if len(from) == 0 || bytes.Equal(from, text) || !s.members.Unknown(from) {
		return text, nil
	}
	var before S // the step may have changed what the state points to
	if err := json.Unmarshal(from, &before); err != nil {
		return nil, err
	}
	known, err := json.Marshal(&before)
	if err != nil {
		return nil, err
	}
	return s.members.Keep(from, known, text), nil
}

// checkState returns an error for a type whose values are not stored completely.
func checkState[S any]() error {
	t := reflect.TypeFor[S]()
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		return fmt.Errorf("its state is a %v: use the type of the value, such as a struct", t)
	default:
	}
	if err := jsonloss.Check(t); err != nil {
		return fmt.Errorf("its state is not stored completely: %w", err)
	}
	return nil
}
