package sqs

import (
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

const (
	// copyAttribute is on the copies of a message that is published to the topics of several types: which of them. Who is
	// subscribed to several knows the copies by it, and is to have one.
	copyAttribute = ours + "Copy"
	// hopAttribute is on a message that has hopped: which deferral of it that was. Its last hop is repeated when it was not known to be
	// done, and SQS does not recognise that.
	hopAttribute = ours + "Hop.Deferral"
)

// What is sent on, as to the error queue or for a delayed retry, has none of these attributes: it is no copy of anything.

// copyOf is what a delivery is a copy of. The zero value is nothing, or a copy that does not count.
type copyOf struct {
	whole string // what there is one of to have: a published message, or a deferral of one
	which string
}

func (c copyOf) key() string { return c.whole + " " + c.which }

// markOf is what a message is a copy of.
func markOf(d *delivery, m *types.Message) copyOf {
	if which, ok := text(m, copyAttribute); ok {
		return copyOf{"published " + d.message.ID, which}
	}
	if deferral, ok := text(m, hopAttribute); ok {
		return copyOf{"deferred " + deferral, d.message.NativeID}
	}
	return copyOf{}
}

// isRedundant tells whether a message is a copy of one that this process holds, or was done with. Then that one is what the queue has of
// it, whatever becomes of it. Otherwise this one is, from now on. It is never taken for granted that another copy will come:
// the subscription that would bring it may be gone.
func (in *inbox) isRedundant(d *delivery, m *types.Message) bool {
	own := markOf(d, m)
	if own == (copyOf{}) {
		return false
	}
	if in.done.has(own.whole) && !in.done.has(own.key()) {
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

// late notes a completion that came too late. The message was handled all the same, unless that is to come after the completion.
func (in *inbox) late(d *delivery) {
	if !d.completesFirst {
		in.finished(d)
	}
}

// finished remembers a message that was handled, and whose other copies need not be.
func (in *inbox) finished(d *delivery) {
	in.done.add(d.message.NativeID)
	in.mu.Lock()
	own := d.copy
	in.mu.Unlock()
	if own != (copyOf{}) {
		in.done.add(own.key())
		in.done.add(own.whole)
	}
}
