package asb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// linger is how long a Receive waits for more messages after the first. A full queue needs
	// less.
	linger = 5 * time.Millisecond
	// emptyReturns is how often in a row the client library may return nothing, as it does when the
	// service closes an idle link, before Receive fails.
	emptyReturns = 3
	// carefulReceives is how many receives ask for one message after the client library could not
	// read one.
	carefulReceives = 20
	// bounceTimeout bounds the wait for the library to release late messages.
	bounceTimeout = 500 * time.Millisecond
	// busyTimeout is the time in which a busy queue delivers as many messages as were asked for.
	busyTimeout = 50 * time.Millisecond
)

var errUnreadable = errors.New("the client library cannot read a message")

// link delivers messages. One Receive at a time uses it; settlements are concurrent.
type link struct {
	receiver  *receiver
	receiving bool // guarded by the receiver's mu
	careful   int  // the number of further receives of one message each
	ask       int  // the number of messages to ask for next
	left      int  // messages asked for that may still come, at most
	rate      rate // of messages

	mu  sync.Mutex // guards the fields below
	rcv *azservicebus.Receiver
	of  *client
}

// on returns the library's receiver on a client.
func (l *link) on(cl *client) (*azservicebus.Receiver, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rcv != nil && l.of == cl {
		return l.rcv, nil
	}
	options := &azservicebus.ReceiverOptions{}
	if l.receiver.dead {
		options.SubQueue = azservicebus.SubQueueDeadLetter
	}
	rcv, err := cl.NewReceiverForQueue(l.receiver.path, options)
	if err != nil {
		return nil, err
	}
	l.rcv, l.of, l.left = rcv, cl, 0
	return rcv, nil
}

// room returns the number of messages to ask for. A request for messages cannot be taken back. The
// library releases messages that come without a receive: they travel twice, and may come too late
// for the end of the link. So an empty queue is asked for one message, and for twice as many each
// time that all have come.
func (l *link) room(limit int) int {
	if l.careful > 0 {
		l.careful--
		return 1
	}
	return min(limit, max(l.ask, l.left, 1))
}

// came records that n of the messages asked for have come.
func (l *link) came(asked, n int) {
	l.left = max(l.left, asked) - n
	l.rate.add(n, time.Now())
	if n == asked {
		l.ask = 2 * asked
	} else {
		l.ask = asked / 2
	}
}

// receive returns at least one message or an error.
func (l *link) receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	pause := backoff.Backoff{Min: redialMin, Max: time.Second}
	for try := range emptyReturns {
		if try > 0 {
			if err := pause.Wait(ctx); err != nil {
				return nil, err
			}
		}
		own, err := l.receiver.supervisor.throttle.wait(ctx)
		if err != nil {
			return nil, err
		}
		ds, err := l.request(ctx, limit, own)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
	}
	return nil, errors.New("the link was closed several times over")
}

// request receives once. It returns neither messages nor an error if the service has ended the
// link.
func (l *link) request(
	ctx context.Context, limit int, own turn,
) (ds []transport.Delivery, err error) {
	defer func() { own.end(err) }()
	cl, err := l.receiver.supervisor.client(ctx)
	if err != nil {
		return nil, err
	}
	rcv, err := l.on(cl)
	if err != nil {
		return nil, cl.cause(ctx, err)
	}
	if own.probe { // the receive may wait long for a message
		accepted := time.AfterFunc(receiveAccepted, func() { own.end(nil) })
		defer accepted.Stop()
	}
	msgs, err := l.call(ctx, cl, rcv, l.room(limit))
	if len(msgs) > 0 {
		return l.test(ctx, l.receiver.deliveries(msgs, cl, rcv)), nil
	}
	if err == nil && !cl.alive() {
		err = errLost
	}
	if err = cmp.Or(err, context.Cause(ctx)); err == nil {
		own.end(errLost) // the service may have ended the link because the namespace is throttled
		l.drop(rcv)
	}
	return nil, err
}

// drop lets the next receive attach a new link. The library (v1.11, internal/errors.go) goes on
// with a link that the service has ended with server-busy, timeout or operation-cancelled, and
// receives nothing by it.
func (l *link) drop(rcv *azservicebus.Receiver) {
	l.forget(rcv)
	l.receiver.retire(rcv)
}

// forget makes the next call of on return another receiver than rcv. It reports whether on returned
// rcv until now.
func (l *link) forget(rcv *azservicebus.Receiver) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rcv != rcv {
		return false
	}
	l.rcv, l.of, l.left = nil, nil, 0
	return true
}

// call calls the library, which panics for a message that has one of the library's properties with
// a type of its own. All messages of that receive stay locked until their locks expire. The next
// receives ask for one message each, until the broker dead-letters the unreadable one.
func (l *link) call(
	ctx context.Context, cl *client, rcv *azservicebus.Receiver, limit int,
) (msgs []*azservicebus.ReceivedMessage, err error) {
	defer func() {
		if v := recover(); v != nil {
			l.careful = carefulReceives
			err = fmt.Errorf("%w: %v", errUnreadable, v)
		}
	}()
	on, over := joined(ctx, cl.ctx)
	defer over()
	msgs, err = rcv.ReceiveMessages(on, limit, &azservicebus.ReceiveMessagesOptions{TimeAfterFirstMessage: linger})
	l.came(limit, len(msgs))
	return msgs, cl.cause(ctx, err)
}

// rate counts messages per second.
type rate struct {
	since  time.Time // start of the current second
	n, old int       // messages in the current second, and in the one before
}

func (r *rate) add(n int, now time.Time) {
	if past := now.Sub(r.since); past >= time.Second {
		r.old = r.n
		if past >= 2*time.Second {
			r.old = 0
		}
		r.n, r.since = 0, now
	}
	r.n += n
}

// busy reports whether at least five messages came in the current second and the one before.
func (r *rate) busy(now time.Time) bool {
	r.add(0, now)
	return r.n+r.old >= 5
}

// browse browses messages from a sequence number on, by the receiver that open returns.
func (v *supervisor) browse(
	ctx context.Context, open func(*client) (*azservicebus.Receiver, error), from int64, limit int,
) (found []*azservicebus.ReceivedMessage, err error) {
	cl, err := v.client(ctx)
	if err != nil {
		return nil, err
	}
	rcv, err := open(cl)
	if err != nil {
		return nil, cl.cause(ctx, err)
	}
	on, over := joined(ctx, cl.ctx)
	defer over()
	defer func() {
		if p := recover(); p != nil { // as in call
			err = fmt.Errorf("%w: %v", errUnreadable, p)
		}
	}()
	found, err = rcv.PeekMessages(on, limit, &azservicebus.PeekMessagesOptions{FromSequenceNumber: &from})
	return found, cl.cause(ctx, err)
}

// there reports whether a queue exists, by the error of browsing it. A throttled namespace counts
// as yes.
func there(err error) bool {
	return err == nil || errors.Is(err, errUnreadable) || errors.Is(plain(err), errBusy)
}
