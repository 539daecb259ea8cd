package sqs

import (
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// copyAttribute is on the copies of a message that is published to the topics of several types: which of them. Who is subscribed
// to several knows the copies by it, and is to have one. What is sent on, as to the error queue, is no copy any more.
const copyAttribute = ours + "Copy"

// copyOf is what a delivery is a copy of. The zero value is no copy, or one that does not count.
type copyOf struct {
	message string // its id
	which   string // of the types
}

func (c copyOf) key() string { return c.which + " " + c.message }

// isRedundant tells whether a message is a copy of one that this process holds, or was done with. Then that one is what the queue has of
// it, whatever becomes of it. Otherwise this one is, from now on. It is never taken for granted that another copy will come:
// the subscription that would bring it may be gone.
func (in *inbox) isRedundant(d *delivery, m *types.Message) bool {
	which, ok := text(m, copyAttribute)
	if !ok {
		return false
	}
	own := copyOf{d.message.ID, which}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, other := range in.held {
		if other != d && other.copy.message == own.message && other.copy.which != which {
			return true
		}
	}
	for i := range maxTypes {
		if other := (copyOf{own.message, strconv.Itoa(i)}); other != own && in.done.has(other.key()) {
			return true
		}
	}
	d.copy = own
	return false
}

// maxTypes is how many types of a message are looked at.
const maxTypes = 32

// finished remembers a message that was handled, and whose other copies need not be.
func (in *inbox) finished(d *delivery) {
	in.done.add(d.message.NativeID)
	in.mu.Lock()
	own := d.copy
	in.mu.Unlock()
	if own != (copyOf{}) {
		in.done.add(own.key())
	}
}
