package saga

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// target is the step and the instance that a message is for.
type target[S any] struct {
	step *step[S] // nil: the message is for another saga
	id   transport.RecordID
	// key is the key of the instance; "" where the message has its id alone. Then it begins no
	// instance.
	key string
}

// begins reports whether the message may begin an instance.
func (t *target[S]) begins() bool { return t.step.role == roleStart && t.key != "" }

// lock returns the name of the lock of a message: the id of its instance.
func (t *messageSteps[S]) lock(m stateful.Message) (string, error) {
	to, err := t.target(m.Kind, m.Headers, m.Value, m.Known)
	if err != nil || to.step == nil {
		return "", err
	}
	return textOf(to.id), nil
}

// target returns the target of a message. kind is the kind of the saga's records, and known reports
// whether a saga of the endpoint has a kind. The error is unrecoverable.
//
// The header of a reply or time-out names the saga that it is for. It counts more than the key of
// the message, as in NServiceBus, where it names this saga.
func (t *messageSteps[S]) target(
	kind string, h *header.Map, m any, known func(kind string) bool,
) (to target[S], err error) {
	addressed, timeout := h.Get(header.SagaType), strings.EqualFold(h.Get(header.IsSagaTimeout), "true")
	switch {
	case addressed == kind:
		return t.addressed(h.Get(header.SagaID), timeout)
	case t.keyed != nil && !timeout:
		return t.byKey(kind, m)
	case addressed == "":
		return to, recoverability.Unrecoverable(fmt.Errorf("the message has no header %s: "+
			"a step of On or Start finds the instance by a key", header.SagaID))
	case !known(addressed):
		return to, recoverability.Unrecoverable(fmt.Errorf("the message is for the saga %q, and the endpoint has no such saga",
			addressed))
	}
	return to, nil
}

// addressed returns the target of a message with the id of an instance.
func (t *messageSteps[S]) addressed(id string, timeout bool) (to target[S], err error) {
	switch {
	case timeout && t.timeout == nil:
		return to, recoverability.Unrecoverable(errors.New("the message is a time-out, and the saga has no OnTimeout for it"))
	case timeout:
		to.step = t.timeout
	case t.reply != nil:
		to.step = t.reply
	case t.keyed != nil:
		to.step = t.keyed
	default:
		return to, recoverability.Unrecoverable(errors.New("the message is no time-out, " +
			"and the saga has nothing but an OnTimeout for it"))
	}
	var ok bool
	if to.id, ok = parseID(id); !ok {
		return to, recoverability.Unrecoverable(fmt.Errorf("the header %s is no id: %.100q", header.SagaID, id))
	}
	return to, nil
}

// byKey returns the target of a message with a key.
func (t *messageSteps[S]) byKey(kind string, m any) (to target[S], err error) {
	key := t.keyed.key(m)
	if err := checkText("the key of the message", key); err != nil {
		return to, err
	}
	return target[S]{t.keyed, idOf(transport.RecordName{Kind: kind, Key: key}), key}, nil
}
