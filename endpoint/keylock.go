package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// maxKey is the longest key of a message in bytes.
const maxKey = 500

// checkKey returns why the key that a function of the user's has returned is none.
func checkKey(key string) error {
	switch {
	case key == "":
		return recoverability.Unrecoverable(errors.New("the key of the message is empty"))
	case len(key) > maxKey:
		return recoverability.Unrecoverable(fmt.Errorf("the key of the message has %d bytes: it must have at most %d", len(key), maxKey))
	case !utf8.ValidString(key):
		return recoverability.Unrecoverable(fmt.Errorf("the key of the message, %q, is no valid UTF-8", key))
	}
	return nil
}

// lockKeys waits, without a slot, until the message has the keys that its handlers name. A behavior
// may have it decoded again.
func (a *attempt) lockKeys(ctx context.Context, r *pipeline.Receive, value any) error {
	keys, err := a.findKeys(r, value)
	if err != nil || len(keys) == 0 {
		return err
	}
	return a.TakeKeys(ctx, keys)
}

// findKeys calls the key functions of the handlers, and returns the distinct keys.
func (a *attempt) findKeys(r *pipeline.Receive, value any) (keys []keylock.Key, err error) {
	a.callKeys = nil
	for i := range a.calls {
		c := &a.calls[i]
		if c.key == nil {
			continue
		}
		if a.callKeys == nil {
			a.callKeys = make([]string, len(a.calls))
		}
		m := stateful.Message{Endpoint: a.live.e.cfg.Name, Kind: c.kind, Headers: &r.Headers, Value: value, Known: a.live.e.types.stores}
		if base := a.as(c.as); base != nil {
			m.Value = base
		}
		a.handler = &c.Handler
		a.Running.EnterFunction(&c.keyName)
		a.callKeys[i], err = c.key(m)
		a.Running.LeaveFunction()
		if err != nil {
			return nil, fmt.Errorf("handler %s: %w", c.name, err)
		}
		a.handler = nil
		if key := (keylock.Key{Kind: c.kind, Name: a.callKeys[i]}); key.Name != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}
