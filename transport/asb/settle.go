package asb

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// settleTimeout bounds one request to settle.
	settleTimeout = 5 * time.Second
	// settleTries is how many requests there may be, the first over the link that the message came
	// by.
	settleTries = 4
	// maxReason is the longest text that is left in a message's properties.
	maxReason = 1000
)

var (
	_ transport.Delivery      = (*delivery)(nil)
	_ transport.DeadLetterer  = (*delivery)(nil)
	_ transport.RetryReasoner = (*delivery)(nil)

	errOver = fmt.Errorf("asb: settled already, or its lock expired: %w", transport.ErrLeaseLost)
)

// delivery is a locked message. The lock has a token, which is valid over any connection: so a
// settlement never affects a later delivery, and is not lost with the link.
type delivery struct {
	receiver *receiver
	raw      *azservicebus.ReceivedMessage // read-only
	client   *client                       // that received it
	rcv      *azservicebus.Receiver        // of client
	message  transport.Message
	exact    bool // the broker's count is exact

	turn chan struct{} // holds a token during a settlement
	over atomic.Bool   // settled, or the lock is lost
}

// verb is a way to settle a message, as received or with its lock token only.
type verb struct {
	name string
	do   func(ctx context.Context, rcv *azservicebus.Receiver, raw *azservicebus.ReceivedMessage) error
}

var complete = verb{"complete", func(ctx context.Context, rcv *azservicebus.Receiver, raw *azservicebus.ReceivedMessage) error {
	return rcv.CompleteMessage(ctx, raw, nil)
}}

// abandon returns a message with further properties. It counts as an attempt: the library has no
// verb that does not.
func abandon(name string, properties map[string]any) verb {
	return verb{name, func(ctx context.Context, rcv *azservicebus.Receiver, raw *azservicebus.ReceivedMessage) error {
		return rcv.AbandonMessage(ctx, raw, &azservicebus.AbandonMessageOptions{PropertiesToModify: properties})
	}}
}

// Message implements [transport.Delivery].
func (d *delivery) Message() *transport.Message { return &d.message }

// Attempt implements [transport.Delivery].
func (d *delivery) Attempt() transport.Attempt {
	return transport.Attempt{N: attemptOf(d.raw), Exact: d.exact}
}

// Complete implements [transport.Delivery].
func (d *delivery) Complete(ctx context.Context) error { return d.settle(ctx, complete) }

// Retry implements [transport.Delivery].
func (d *delivery) Retry(ctx context.Context) error { return d.Release(ctx) }

// RetryBecause implements [transport.RetryReasoner].
func (d *delivery) RetryBecause(ctx context.Context, reason string) error {
	note := map[string]any{PropertyRetryError: clip(reason)}
	if instance := d.receiver.of.instance; instance != "" {
		note[PropertyRetryInstance] = clip(instance)
	}
	return d.settle(ctx, abandon("retry", note))
}

// Release implements [transport.Delivery]. It counts as an attempt. It makes no request if the lock
// must have expired, whether the namespace can be reached or not.
func (d *delivery) Release(ctx context.Context) error {
	if d.overdue() {
		d.end()
		return errOver
	}
	return d.settle(ctx, abandon("release", nil))
}

// overdue reports whether the lock must have expired.
func (d *delivery) overdue() bool {
	d.receiver.mu.Lock()
	defer d.receiver.mu.Unlock()
	until, out := d.receiver.inFlight[d]
	return out && !time.Now().Before(until)
}

// end marks the delivery as settled or lost.
func (d *delivery) end() {
	d.over.Store(true)
	r := d.receiver
	r.mu.Lock()
	delete(r.inFlight, d)
	last := r.closed && len(r.inFlight) == 0
	r.mu.Unlock()
	r.forgetRetired(d.rcv)
	if last {
		r.of.tasks.Go(r.leave)
	}
}

// DeadLetter implements [transport.DeadLetterer].
func (d *delivery) DeadLetter(ctx context.Context, reason string) error {
	if d.receiver.dead {
		return fmt.Errorf("asb: dead-letter a message of %q: it is a dead letter already: the service dead-letters none of its dead-letter queues", d.receiver.queue)
	}
	reason = clip(reason)
	options := &azservicebus.DeadLetterOptions{Reason: &reason}
	if d.receiver.of.instance != "" {
		description := "by instance " + clip(d.receiver.of.instance)
		options.ErrorDescription = &description
	}
	return d.settle(ctx, verb{"dead-letter", func(ctx context.Context, rcv *azservicebus.Receiver, raw *azservicebus.ReceivedMessage) error {
		// By its token the message is dead-lettered in a request. On the link the library writes
		// reason and description under keys that are no symbols, which a strict service drops.
		return rcv.DeadLetterMessage(ctx, &azservicebus.ReceivedMessage{LockToken: raw.LockToken}, options)
	}})
}

// clip cuts a text to maxReason bytes.
func clip(s string) string {
	if len(s) <= maxReason {
		return s
	}
	end := maxReason
	for end > 0 && s[end]&0xC0 == 0x80 { // within a character
		end--
	}
	return s[:end] + "…"
}

// settle carries out a verb. Of concurrent calls one settles.
func (d *delivery) settle(ctx context.Context, v verb) error {
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-d.turn }()
	if d.receiver.of.ctx.Err() != nil {
		return transport.ErrClosed
	}
	if d.over.Load() {
		return errOver
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := d.request(ctx, v)
	switch {
	case err == nil, errors.Is(err, transport.ErrLeaseLost):
		d.end()
	case d.overdue():
		d.end()
		err = fmt.Errorf("%w: %w", transport.ErrLeaseLost, err)
	case d.receiver.of.ctx.Err() != nil:
		return transport.ErrClosed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if err == nil {
		return nil // without the allocations of the next line
	}
	return wrap(err, "%s a message of %q", v.name, d.receiver.queue)
}

// request settles over the link that received the message, or by the lock's token if the link is
// lost.
func (d *delivery) request(ctx context.Context, v verb) error {
	err := errLost
	if d.client.alive() && !d.receiver.isRetired(d.rcv) {
		if err = v.ask(ctx, d.client, d.rcv, d.raw); done(err) {
			return err
		}
	}
	pause := backoff.Backoff{Min: redialMin, Max: time.Second}
	for range settleTries - 1 {
		if ctx.Err() != nil {
			return err
		}
		if err = d.byToken(ctx, v); done(err) || pause.Wait(ctx) != nil {
			return err
		}
	}
	return err
}

// done reports whether the broker's answer is final. That of a busy or failing service is not.
func done(err error) bool {
	return answered(err) && !oneOf(err, errBusy, errFailed) || errors.Is(err, transport.ErrClosed)
}

// byToken carries out a verb by the lock's token. The library may write to the message, which is a
// new one.
func (d *delivery) byToken(ctx context.Context, v verb) (err error) {
	own, err := d.receiver.supervisor.throttle.wait(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	defer func() { own.end(err) }()
	cl, err := d.receiver.supervisor.client(ctx)
	if err != nil {
		return err
	}
	rcv, err := d.receiver.settler.on(cl)
	if err != nil {
		return cl.cause(ctx, err)
	}
	err = v.ask(ctx, cl, rcv, &azservicebus.ReceivedMessage{LockToken: d.raw.LockToken})
	if mayHaveEnded(err) && cl.alive() && ctx.Err() == nil {
		d.receiver.replaceSettler(rcv)
	}
	return err
}

// ask makes a request within settleTimeout and the life of the connection: by itself the client
// library tries for minutes.
func (v verb) ask(
	ctx context.Context, cl *client, rcv *azservicebus.Receiver, raw *azservicebus.ReceivedMessage,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTimeout, errNoReply)
	defer cancel()
	stop := context.AfterFunc(cl.ctx, cancel)
	defer stop()
	err := v.do(ctx, rcv, raw)
	if err != nil && !cl.alive() {
		return errLost
	}
	return plain(cl.cause(ctx, err))
}
