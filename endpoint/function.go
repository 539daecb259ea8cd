package endpoint

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/goroutines"
)

// The names of the functions of the program that the watch counts beside handlers: see
// [overdue.Call.EnterFunction]. A key function has the name of its handler.
var (
	nameTranslate      = "Transport.Translate"
	nameDecode         = "the decoding of the message"
	nameDispatch       = "a behavior of stage Dispatch"
	nameRecover        = "a behavior of stage Recover"
	nameRelay          = "a behavior of stage Relay"
	namePolicy         = "Recoverability.Policy, or a matcher"
	nameMatchers       = "a matcher of Recoverability"
	nameFaultHeaders   = "Recoverability.FaultHeaders"
	nameOnFinalFailure = "Config.OnFinalFailure"
)

// asFunction calls f, a function of the program that is called for the message, in a goroutine of
// its own: see [panics.Apart]. The watch counts the call until f returns.
func (in *incoming) asFunction(call *overdue.Call, name *string, f func() error) error {
	call.Slot = in.Slot
	return panics.Apart(func() error {
		call.EnterFunction(name)
		in.live.calls.Begin(call, in.Queue, in.ID, goroutines.ID())
		defer in.live.calls.End(call)
		return f()
	})
}

// Late implements [overdue.Observer]: the messages behind one whose call is late take their keys
// before it.
func (in *incoming) Late() { in.keys.Arrivals.Overtake(in.Slot) }

// observe has the watch know the slot of a call for the message. It has the watch tell the message
// that the call is late, if other messages wait for the message to take its keys.
func (in *incoming) observe(call *overdue.Call) {
	call.Slot = in.Slot
	if in.keys.Arrivals != nil {
		call.Observer = in
	}
}

// translate is a guard. It has the function of the driver's user change the message. If the
// function fails, the message cannot be decoded.
func translate(_ context.Context, in *incoming) outcome {
	f := in.live.translate
	if in.Received.Message().Undecodable != nil {
		return nil
	}
	m := settle.SharedCopy(in.Received.Message())
	call := &in.first.running
	in.observe(call)
	err := in.asFunction(call, &nameTranslate, func() error {
		f(m)
		return nil
	})
	if err != nil {
		m = settle.SharedCopy(in.Received.Message())
		m.Undecodable = fmt.Errorf("%s: %w", nameTranslate, err)
	}
	in.Original, in.ID = settle.OriginalOf(m)
	return nil
}
