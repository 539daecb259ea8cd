package sqs

import (
	"encoding/base64"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// maxHeaders is left for headers in a message.
	maxHeaders = 64 << 10
	// frame is left for what else belongs to a message: attributes' names and types, the envelope's punctuation.
	frame = 1 << 10
	// maxPublished is what SNS takes, attributes included.
	maxPublished = 256 << 10
	// parallelReceive bounds the polls of a receiver under load: 100 messages.
	parallelReceive = 10
)

// Limits is what SQS takes. Messages that are all headers, or whose headers have many characters to escape, may be
// refused below it, with what they measured.
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
