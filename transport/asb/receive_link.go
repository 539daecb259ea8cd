package asb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// company is how long a Receive waits for more once there is a message. Those of a full queue come together and are
	// there before.
	company = 5 * time.Millisecond
	// emptyReturns is how often the client library may return nothing, as it does when the service closes an idle link,
	// before Receive says so.
	emptyReturns = 3
	// carefulReceives is how many receives take one message each after the client library could not read one.
	carefulReceives = 20
	// bounceTimeout bounds the wait for the library to give back what it was not asked for.
	bounceTimeout = 500 * time.Millisecond
	// busyTimeout is within what time as many messages come to a busy queue as were asked for.
	busyTimeout = 50 * time.Millisecond
)

var (
	errNothing    = errors.New("the link was closed several times over")
	errUnreadable = errors.New("the client library cannot read a message")
)

// link is what messages come by. It is used by one Receive at a time, and settled by from anywhere.
type link struct {
	receiver *receiver
	taken    bool // guarded by the receiver's mutex
	careful  int  // so many receives take one message each
	ask      int  // how many to ask for next
	left     int  // the most that were asked for and did not come: they still may
	rate     rate // of what comes

	mu  sync.Mutex // guards what follows
	rcv *azservicebus.Receiver
	of  *client
}

// on is the library's receiver on a session.
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

// room is how many to ask for. What is asked for can be taken back no more, and what comes when nobody receives is given back by the
// library, travels twice, and may be late for the end of the link: so a queue that has been found empty is asked for one, and
// for twice as many each time that all have come.
func (l *link) room(limit int) int {
	if l.careful > 0 {
		l.careful--
		return 1
	}
	return min(limit, max(l.ask, l.left, 1))
}

// came takes in how many of those asked for have come.
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
	for range emptyReturns {
		own, err := l.receiver.supervisor.throttle.wait(ctx)
		if err != nil {
			return nil, err
		}
		ds, err := l.request(ctx, limit, own)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
	}
	return nil, errNothing
}

// request receives once. It returns neither messages nor an error where the service closed an idle link.
func (l *link) request(ctx context.Context, limit int, own turn) (ds []transport.Delivery, err error) {
	defer func() { own.end(err) }()
	cl, err := l.receiver.supervisor.client(ctx)
	if err != nil {
		return nil, err
	}
	rcv, err := l.on(cl)
	if err != nil {
		return nil, cl.lostIn(ctx, err)
	}
	if own.probe { // it may wait for messages for long
		accepted := time.AfterFunc(receiveAccepted, func() { own.end(nil) })
		defer accepted.Stop()
	}
	msgs, err := l.call(ctx, cl, rcv, l.room(limit))
	switch {
	case len(msgs) > 0:
		return l.test(ctx, l.receiver.hand(msgs, cl, rcv)), nil
	case err != nil || ctx.Err() != nil:
		return nil, errors.Join(err, ctx.Err())
	case !cl.alive():
		return nil, errLost
	}
	return nil, nil
}

// call receives by the library. It panics over a message with a property of its own names in another type; all that came with such a
// message stays locked until the locks run out, so that then messages come one by one, until the broker gives this one up.
func (l *link) call(ctx context.Context, cl *client, rcv *azservicebus.Receiver, limit int) (msgs []*azservicebus.ReceivedMessage, err error) {
	defer func() {
		if v := recover(); v != nil {
			l.careful = carefulReceives
			err = fmt.Errorf("%w: %v", errUnreadable, v)
		}
	}()
	on, over := cl.on(ctx)
	defer over()
	msgs, err = rcv.ReceiveMessages(on, limit, &azservicebus.ReceiveMessagesOptions{TimeAfterFirstMessage: company})
	l.came(limit, len(msgs))
	return msgs, cl.lostIn(ctx, err)
}

// rate tells whether many messages come.
type rate struct {
	since  time.Time // of the present second
	n, old int       // messages in it, and in the one before
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

// busy is true from five in a second or two.
func (r *rate) busy(now time.Time) bool {
	r.add(0, now)
	return r.n+r.old >= 5
}

// look looks at messages from a sequence number on.
func look(ctx context.Context, rcv *azservicebus.Receiver, from int64, limit int) (found []*azservicebus.ReceivedMessage, err error) {
	defer func() {
		if v := recover(); v != nil { // as in call
			err = fmt.Errorf("%w: %v", errUnreadable, v)
		}
	}()
	return rcv.PeekMessages(ctx, limit, &azservicebus.PeekMessagesOptions{FromSequenceNumber: &from})
}

// there reports whether a queue exists, as far as the error of a look into it says. A throttled namespace does not say.
func there(err error) bool {
	return err == nil || errors.Is(err, errUnreadable) || errors.Is(plain(err), errBusy)
}
