package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/pump"
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

// passKeys is a guard. If no handler of the message has a key, by the headers that the message
// arrived with, the messages behind it may take their keys.
func passKeys(_ context.Context, in *incoming) outcome {
	_, calls := in.e.types.named(in.Original.Headers.Get(header.EnclosedMessageTypes))
	if !slices.ContainsFunc(calls, func(c call) bool { return c.key != nil }) {
		in.keys.Arrivals.Pass(in.Slot)
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
	if a.keys.Has(keys) {
		return nil
	}
	a.leaveLimit() // a message with these keys may wait for it
	return a.keys.Take(a.Slot, keys, func(granted <-chan struct{}) error { return a.awaitKeys(ctx, granted) })
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
		m := stateful.Message{Endpoint: a.e.cfg.Name, Kind: c.kind, Headers: &r.Headers, Value: value, Known: a.e.types.stores}
		if base := a.as(c.as); base != nil {
			m.Value = base
		}
		a.handler = &c.Handler
		a.running.EnterFunction(&c.keyName)
		a.callKeys[i], err = c.key(m)
		a.running.LeaveFunction()
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

// awaitKeys waits until the keys are granted, together with a slot. It returns an error when the
// message has no more time: the endpoint stops, the lease is lost, or the broker is about to
// redeliver the message.
func (a *attempt) awaitKeys(ctx context.Context, granted <-chan struct{}) error {
	switch a.await(ctx, forever, granted) {
	case happened:
		return nil
	case late:
		a.keysEnded = untouched{outstayedPause}
		return errOutstayed
	case stopping:
		a.keysEnded = released{}
		return pump.ErrStopping
	case canceled:
		if !a.CompletedFirst() {
			a.keysEnded = released{}
		}
	}
	return context.Cause(ctx)
}

// outstayedPause is the time after which a message that waited for too long is due again, where it
// returns as a copy.
const outstayedPause = time.Second

var errOutstayed = errors.New("the message has waited for its key for as long as the broker allows")

// giveUpKeys lets the messages that wait for a key of the message go on: see [keylock.Held.GiveUp].
func (in *incoming) giveUpKeys() { in.keys.GiveUp(in.Slot) }
