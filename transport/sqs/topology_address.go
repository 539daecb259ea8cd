package sqs

import (
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Addresser = (*conn)(nil)

// Address implements [transport.Addresser]: the queue's name at SQS, with the prefix.
func (c *conn) Address(queue string) string {
	name, err := queueName(c.cfg.QueuePrefix, queue)
	if err != nil {
		return queue
	}
	return name
}

// ShortName implements [transport.Addresser]: the queue's name at SQS without the prefix.
func (c *conn) ShortName(address string) string { return shortName(c.cfg.QueuePrefix, address) }

// shortName returns the name at SQS of the queue of an address without the prefix; with it, where
// the rest of the name would be read as another queue, because it begins with the prefix again.
func shortName(prefix, address string) string {
	if isClean(prefix) && isClean(address) && !strings.HasPrefix(address, prefix) && len(prefix)+len(address) <= longestQueue {
		return address // the usual case, without an allocation
	}
	name, err := queueName(prefix, address)
	if err != nil {
		return address
	}
	clean, _ := sanitize(prefix) // queueName has done so
	short := strings.TrimPrefix(name, clean)
	if again, err := queueName(prefix, short); err != nil || again != name {
		return name
	}
	return short
}
