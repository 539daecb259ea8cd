package endpoint

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
)

// The names of the functions of the program that the watch counts beside handlers: see
// [overdue.Call.EnterFunction]. A key function has the name of its handler.
var (
	nameTranslate = "Transport.Translate"
	nameDecode    = "the decoding of the message"
	nameDispatch  = "a behavior of stage Dispatch"
	nameRelay     = "a behavior of stage Relay"
	nameMatchers  = "a matcher of Recoverability"
)

// asFunction calls f, a function of the program that is called for the message: see
// [overdue.Watch.Apart].
func (in *incoming) asFunction(call *overdue.Call, name *string, f func() error) error {
	call.Slot = in.Slot
	return in.live.calls.Apart(call, name, in.Queue, in.ID, f)
}

// Late implements [overdue.Observer]: the messages behind one whose call is late take their keys
// before it.
func (in *incoming) Late() { in.keys.Arrivals.Overtake(in.Slot) }

// observe tells the watch the slot of a call for the message. If other messages wait until the
// message has taken its keys, the watch tells the message when the call is late.
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
