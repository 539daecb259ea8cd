package sqs

import (
	"encoding/base64"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// maxHeaders is reserved for the headers of a message.
	maxHeaders = 64 << 10
	// frame is reserved for the rest of a message: names and types of attributes, the envelope's
	// punctuation.
	frame = 1 << 10
	// maxPublished is SNS's limit for a message with its attributes, unless a topic has another.
	maxPublished = 256 << 10
	// parallelReceive is the number of concurrent polls of a receiver: 100 messages.
	parallelReceive = 10
)

// Limits implements [transport.Conn]. A message that is all headers, or whose headers have many
// characters to escape, may be refused although it is within MaxBody and MaxHeaders; the error has
// its size.
func (c *conn) Limits() transport.Limits {
	l := transport.Limits{
		MaxBody:         c.cfg.MaxMessage - maxHeaders - frame,
		MaxHeaders:      maxHeaders,
		MaxDelay:        transport.Unlimited,
		Lease:           c.cfg.Lease,
		MaxHold:         maxHold,
		MaxReceive:      maxBatch,
		ParallelReceive: parallelReceive,
		Unbuffered:      true,
	}
	if !c.cfg.RawBody {
		l.MaxBody = base64.StdEncoding.DecodedLen(l.MaxBody) / 3 * 3
	}
	if c.cfg.ShortDelays {
		l.MaxDelay = maxDelay
	}
	return l
}
