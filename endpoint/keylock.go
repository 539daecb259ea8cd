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

// keyed is a delivery's part in the locks of keys. It lasts for all attempts: a message gives its
// keys up when it is settled, or before that when it waits for something that a message with one of
// its keys may have. The zero value is for an endpoint without keys.
type keyed struct {
	locks    *keylock.Locks    // nil: no handler has keys
	arrivals *keylock.Arrivals // nil in quarantine, where messages are handled one at a time
	lock     *keylock.Lock     // nil: no keys are held
	waited   time.Duration     // in all
	ended    way               // how the message returns if its wait has ended without the keys
}

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
		in.keyed.arrivals.Pass(in.Slot)
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
	k := &a.keyed
	if k.lock != nil {
		if k.lock.Holds(keys) {
			return nil
		}
		a.leaveLimit() // a message with these keys may wait for it
		k.lock.Leave()
	}
	k.lock = k.locks.Enter(k.arrivals, a.Slot, keys)
	if granted := k.lock.Granted(); granted != nil {
		began := time.Now()
		err = a.awaitKeys(ctx, granted)
		k.waited += time.Since(began)
	}
	return err
}

// findKeys calls the key functions of the handlers, and returns the distinct keys.
func (a *attempt) findKeys(r *pipeline.Receive, value any) (keys []keylock.Key, err error) {
	a.keys = nil
	for i := range a.calls {
		c := &a.calls[i]
		if c.key == nil {
			continue
		}
		if a.keys == nil {
			a.keys = make([]string, len(a.calls))
		}
		m := stateful.Message{Endpoint: a.e.cfg.Name, Kind: c.kind, Headers: &r.Headers, Value: value, Known: a.e.types.stores}
		if base := a.as(c.as); base != nil {
			m.Value = base
		}
		a.handler = &c.Handler
		a.running.EnterFunction(&c.keyName)
		a.keys[i], err = c.key(m)
		a.running.LeaveFunction()
		if err != nil {
			return nil, fmt.Errorf("handler %s: %w", c.name, err)
		}
		a.handler = nil
		if key := (keylock.Key{Kind: c.kind, Name: a.keys[i]}); key.Name != "" && !slices.Contains(keys, key) {
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
		a.keyed.ended = untouched{outstayedPause}
		return errOutstayed
	case stopping:
		a.keyed.ended = released{}
		return pump.ErrStopping
	case canceled:
		if !a.CompletedFirst() {
			a.keyed.ended = released{}
		}
	}
	return context.Cause(ctx)
}

// outstayedPause is the time after which a message that waited for too long is due again, where it
// returns as a copy.
const outstayedPause = time.Second

var errOutstayed = errors.New("the message has waited for its key for as long as the broker allows")

// giveUpKeys lets the next messages with the keys of the message be handled, and those that wait
// for it to take its keys. The message may take keys again later, behind them.
func (in *incoming) giveUpKeys() {
	k := &in.keyed
	if k.locks == nil {
		return
	}
	if k.lock != nil {
		k.lock.Leave()
		k.lock = nil
	}
	if k.arrivals != nil {
		k.arrivals.Pass(in.Slot)
	}
}
