package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// relayRows and relayBytes bound one batch of stored messages.
	relayRows  = 100
	relayBytes = 16 << 20
	// relayActive batches are being sent at once, and relayHeld are sent or wait for the broker.
	relayActive = 2
	relayHeld   = 4
	// relayStray batches have no token, because a destination does not answer.
	relayStray = 64
	// relayWaiting rows of this process wait to be sent without a claim.
	relayWaiting = 16 * relayRows
	// relayIdle is how long a relay that stops waits for a further stored message, and relayLast
	// how long it relays at least after the last handler has ended.
	relayIdle = 50 * time.Millisecond
	relayLast = time.Second
)

// relay sends the messages in the outbox to the broker. Every instance has one: each receives other
// rows.
type relay struct {
	live     *live
	outbox   *outbox
	receiver transport.Receiver
	state    pump.Reception
	removal  pump.Reception // of the removals of rows that were sent

	active chan struct{} // has a token for each batch that is being sent
	held   chan struct{} // has a token for each batch that is not settled
	stray  atomic.Int32  // batches without tokens, because a destination does not answer

	sent        atomic.Int64 // messages that the broker has accepted
	refused     atomic.Int64 // messages that were moved to the error queue
	refusedRows refusedRows
	unreadable  unreadable
}

// newRelay opens the relay of the outbox.
func (l *live) newRelay(ctx context.Context) (*relay, error) {
	o := l.timers
	receiver, err := o.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: o.queue})
	if err != nil {
		return nil, err
	}
	r := &relay{live: l, outbox: o, receiver: receiver, state: pump.Reception{Queue: o.queue}}
	r.active, r.held = make(chan struct{}, relayActive), make(chan struct{}, relayHeld)
	if l.e.cfg.Concurrency == 1 { // messages keep their order
		r.active, r.held = make(chan struct{}, 1), make(chan struct{}, 1)
		return r, nil
	}
	receiver.Window(relayWaiting)
	return r, nil
}

// relayUntilEnd relays what is stored in the outbox, beside the handlers. The result waits until
// what they have stored is sent, for at most StopTimeout.
func (l *live) relayUntilEnd(ctx context.Context) (end func()) {
	if l.relay == nil {
		return func() {}
	}
	stopping := make(chan struct{})
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	if l.outbox != nil {
		running.Go(func() { l.outbox.watch(watching) })
	}
	running.Go(func() { l.relay.callBack(watching) })
	running.Go(func() { l.relay.run(ctx, stopping) })
	return func() {
		close(stopping)
		cancel()
		running.Wait()
		l.relay.hasten(context.WithoutCancel(ctx), l.relay.book().CallAll())
	}
}

// run relays until stopping is closed and no stored message is left, or until StopTimeout has
// passed since the end of Run's context.
func (r *relay) run(running context.Context, stopping <-chan struct{}) {
	ctx, end := context.WithCancel(context.WithoutCancel(running))
	receiving, interrupt := context.WithCancel(ctx)
	defer interrupt()
	var ending sync.WaitGroup
	defer func() { end(); ending.Wait() }()
	ending.Go(func() {
		<-running.Done()
		began := time.Now()
		<-stopping
		interrupt()
		if most := r.live.e.cfg.StopTimeout; most > 0 && backoff.Sleep(ctx, max(relayLast, most-time.Since(began))) == nil {
			end()
		}
	})
	var batches sync.WaitGroup
	defer batches.Wait()
	note := r.live.watch(ctx, &r.state)
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	longest := time.Duration(0) // of the failed receives of an outage
	works := func() {
		note(nil)
		pause.Reset()
		longest = 0
	}
	for {
		if !take(ctx, r.held) {
			return
		}
		if !take(ctx, r.active) {
			<-r.held
			return
		}
		last := receiving.Err() != nil
		began, stop := time.Now(), func() {}
		if longest > 0 {
			stop = pump.Listen(receiving, r.receiver, longest, works)
		}
		ds, err := r.receive(receiving, ctx)
		stop()
		if len(ds) > 0 {
			works()
			batches.Go(func() { r.send(ctx, ds) })
			continue
		}
		<-r.active
		<-r.held
		if last {
			return
		}
		if receiving.Err() == nil && err != nil {
			longest = max(longest, time.Since(began), 1)
			note(err)
			_ = pause.Wait(receiving)
		}
	}
}

// receive receives stored messages. When receiving has ended it waits only briefly for one.
func (r *relay) receive(receiving, ctx context.Context) ([]transport.Delivery, error) {
	if receiving.Err() != nil {
		idle, cancel := context.WithTimeout(ctx, relayIdle)
		defer cancel()
		receiving = idle
	}
	if b, ok := r.receiver.(transport.ByteReceiver); ok {
		return b.ReceiveBytes(receiving, relayRows, relayBytes)
	}
	return r.receiver.Receive(receiving, relayRows)
}

// take puts a token into c, and reports false when ctx ends first.
func take(ctx context.Context, c chan<- struct{}) bool {
	select {
	case c <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// tokens are what a batch holds of the relay's active and held.
type tokens struct {
	relay        *relay
	mu           sync.Mutex // guards the rest
	active, held bool
	stray        bool
}

// idle returns the token of a batch that is being sent.
func (t *tokens) idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active {
		t.active = false
		<-t.relay.active
	}
}

// yield returns both tokens, because a destination does not answer: messages for others are sent
// meanwhile. A relay that sends in order keeps them.
func (t *tokens) yield() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held || t.stray || cap(t.relay.held) == 1 {
		return
	}
	if t.relay.stray.Add(1) > relayStray {
		t.relay.stray.Add(-1)
		return
	}
	t.stray = true
	t.give()
}

// end returns what the batch still holds.
func (t *tokens) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stray {
		t.relay.stray.Add(-1)
	}
	t.give()
}

func (t *tokens) give() {
	if t.active {
		<-t.relay.active
	}
	if t.held {
		<-t.relay.held
	}
	t.active, t.held = false, false
}

// send sends the messages of one batch.
func (r *relay) send(ctx context.Context, ds []transport.Delivery) {
	t := &tokens{relay: r, active: true, held: true}
	defer t.end()
	b := &relayBatch{relay: r, yield: t.yield}
	b.decode(ctx, ds)
	stop := b.renew(ctx)
	defer stop()
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		b.dispatch(ctx)
		if len(b.ops) == 0 {
			break
		}
		if cap(r.active) > 1 {
			t.idle() // so that the others are sent meanwhile
		}
		b.completeSent(ctx)
		if b.postpone(ctx); len(b.ops) == 0 {
			break
		}
		if pause.Wait(ctx) != nil {
			b.release(ctx)
			break
		}
	}
	t.idle()
	for b.completeSent(ctx) {
		if pause.Wait(ctx) != nil {
			return
		}
	}
}

// noteRemoval records whether rows that were sent can be removed.
func (r *relay) noteRemoval(ctx context.Context, err error) {
	_, before := r.removal.Failing()
	_ = r.removal.Note(err)
	if before == nil && err != nil {
		r.live.e.cfg.Logger.WarnContext(ctx, "messages of the outbox were sent, and cannot be removed from it at the moment: "+
			"it is tried again, because they would be sent again", slog.Any("error", work.WithAdvice(err)))
	}
}

// unreadable is the stored messages that cannot be decoded. It logs them at most once a minute.
type unreadable struct {
	mu     sync.Mutex // guards the rest
	err    error      // of the last one
	seen   time.Time
	logged time.Time
}

// unreadableFor is the least time for which a stored message that cannot be decoded is reported
// after it was received.
const unreadableFor = 5 * time.Minute

func (u *unreadable) add(ctx context.Context, log *slog.Logger, id string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = fmt.Errorf("row %s: %w", id, err)
	u.seen = time.Now()
	if time.Since(u.logged) < time.Minute {
		return
	}
	u.logged = u.seen
	log.ErrorContext(ctx, "a message in the outbox cannot be read: it stays there, and others are sent",
		slog.String("row", id), slog.Any("error", err))
}

// found returns the last error while its row may be there: it is received again, by this or another
// instance, whenever its lease has ended. Without leases it is received once. found returns nil
// otherwise.
func (u *unreadable) found(lease time.Duration) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if lease > 0 && time.Since(u.seen) > max(unreadableFor, 3*lease) {
		return nil
	}
	return u.err
}
