package transport

import "context"

// ByteReceiver is implemented by a Receiver that can bound one Receive by size as well as by
// number. Without it the pump asks for fewer messages, by the sizes that it has seen.
type ByteReceiver interface {
	// ReceiveBytes is Receive with a second bound: the headers and bodies of the deliveries that it
	// returns have at most maxBytes bytes in total. A single delivery is returned whatever its
	// size. maxBytes is at least 1.
	ReceiveBytes(ctx context.Context, limit int, maxBytes int64) ([]Delivery, error)
}

// Listener is implemented by a Receiver that knows whether the broker answers while Receive waits
// for a message. The pump asks while a Receive runs that follows a failed one: an endpoint of an
// idle queue is ready again within seconds of an outage. Without it a Receive counts as a success
// once it has waited for twice as long as each failed one: for 15 s at least, and for two minutes
// at most.
type Listener interface {
	// Listening reports whether the broker has answered the driver since the last failure of
	// Receive, so that a message would be received now. It makes no request, and may be called at
	// any time.
	Listening() bool
}

// Renewer is implemented by a Receiver whose deliveries are leased (Limits.Lease). The pump renews
// all deliveries that are not settled.
type Renewer interface {
	// Renew extends the leases to a full Limits.Lease from now. The result has an entry per
	// delivery: nil, [ErrLeaseLost], or the error of a renewal with an unknown outcome.
	Renew(ctx context.Context, ds []Delivery) []error
}

// Drainer is implemented by a Receiver that prefetches messages whose return counts as an attempt,
// so that they are handled before the endpoint stops. Without it the driver returns them when it is
// closed.
type Drainer interface {
	// Drain stops the broker from sending more, and returns up to limit prefetched deliveries in
	// their order, to be settled like those of Receive. It is called after the last Receive has
	// returned, repeatedly until it returns none. It waits for the broker until ctx ends, and then
	// returns what is prefetched. Later messages return to the queue with Close; those of a lost
	// connection are not returned.
	Drain(ctx context.Context, limit int) []Delivery
}
