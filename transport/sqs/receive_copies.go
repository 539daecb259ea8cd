package sqs

import "github.com/aws/aws-sdk-go-v2/service/sqs/types"

const (
	// copyAttribute is on the copies of a message that is published to the topics of several types:
	// the number of the type. A queue that is subscribed to several of them receives several
	// copies, and the message is to be handled once.
	copyAttribute = ours + "Copy"
	// hopAttribute is on a message that has hopped: its deferral. The last hop is repeated if its
	// outcome was unknown, and SQS does not recognize that.
	hopAttribute = ours + "Hop.Deferral"
)

// The endpoint's own copies, as for the error queue or a delayed retry, have none of these
// attributes.

// copyOf identifies a message and its copy. The zero value is a message without copies.
type copyOf struct {
	whole string // the message that is to be handled once: a published message, or a deferral of one
	which string
}

func (c copyOf) key() string { return c.whole + " " + c.which }

// markOf returns the copy that a message is.
func markOf(d *delivery, m *types.Message) copyOf {
	if which, ok := text(m, copyAttribute); ok {
		return copyOf{"published " + d.message.ID, which}
	}
	if deferral, ok := text(m, hopAttribute); ok {
		return copyOf{"deferred " + deferral, d.message.NativeID}
	}
	return copyOf{}
}

// isRedundant reports whether this process holds, or has completed, another copy of a message. If
// not, it records this one. It never relies on a copy that was not received yet: its subscription
// may be removed by now.
func (in *inFlight) isRedundant(d *delivery, m *types.Message) bool {
	own := markOf(d, m)
	if own == (copyOf{}) {
		return false
	}
	if in.processed.has(own.whole) && !in.processed.has(own.key()) {
		return true
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, other := range in.held {
		if other != d && other.copy.whole == own.whole && other.copy.which != own.which {
			return true
		}
	}
	d.copy = own
	return false
}

// late records a completion after the end of the lease. The message was handled all the same,
// unless it is completed before it is handled.
func (in *inFlight) late(d *delivery) {
	if !d.completesFirst {
		in.finished(d)
	}
}

// finished records a message that was handled, so that its other copies are not.
func (in *inFlight) finished(d *delivery) {
	in.processed.add(d.message.NativeID)
	if own := d.copy; own != (copyOf{}) {
		in.processed.add(own.key())
		in.processed.add(own.whole)
	}
}
