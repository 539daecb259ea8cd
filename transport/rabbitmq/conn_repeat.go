package rabbitmq

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// repeatFor is how long after its first failure a request is repeated.
const repeatFor = 2 * dialTimeout

// repetition paces the attempts at a request. The zero value is ready for the first failure. It is
// not safe for concurrent use.
type repetition struct {
	pause backoff.Backoff
	until time.Time
}

// again waits for the next attempt. It reports false if there is none, because repeatFor has passed
// or ctx has ended.
func (r *repetition) again(ctx context.Context) bool {
	if r.until.IsZero() {
		r.until = time.Now().Add(repeatFor)
		r.pause = backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	}
	return time.Now().Before(r.until) && r.pause.Wait(ctx) == nil
}

// isMomentary reports whether a request on a connection has failed for the state of the broker or
// of the connection at that moment, so that the same request may succeed later. An answer about the
// request itself is not momentary.
func isMomentary(err error, conn *brokerConn) bool {
	var broker *amqp.Error
	var network *net.OpError
	switch {
	case err == nil, errors.Is(err, transport.ErrClosed):
		return false
	case !errors.As(err, &broker) || !broker.Server:
		// The library may report only that the connection is closed. A connection whose write has
		// failed is closed soon.
		return errors.As(err, &network) || conn.IsClosed()
	}
	switch broker.Code {
	case amqp.InternalError: // for example a queue that cannot be started, or a metadata store without an answer
		return true
	case amqp.ConnectionForced: // a node that stops
		return true
	case amqp.NotFound: // of a queue that exists
		return strings.Contains(broker.Reason, "due to timeout") || strings.Contains(broker.Reason, "down or inaccessible")
	}
	return false
}
