package outbox

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
	// relayRows and relayBytes bound a batch of stored messages.
	relayRows  = 100
	relayBytes = 16 << 20
	// relayActive batches are being sent at once, and relayHeld are sent or wait for the broker.
	relayActive = 2
	relayHeld   = 4
	// relayStray batches have no token, because a destination does not answer.
	relayStray = 64
	// relayWaiting rows of this process wait to be sent without a claim.
	relayWaiting = 16 * relayRows
	// relayIdle is the time for which a stopping relay waits for a further row, and relayLast is the
	// least time of the relay after the end of the last handler.
	relayIdle = 50 * time.Millisecond
	relayLast = time.Second
)

// Relay sends the messages in the outbox to the broker. Every instance has a relay, and each relay
// receives different rows.
type Relay struct {
	sender
	receiver  transport.Receiver
	receiving pump.Reception

	active chan struct{} // has a token for each batch that is being sent
	held   chan struct{} // has a token for each batch that is not settled
	stray  atomic.Int32  // batches without tokens, because a destination does not answer

	pause   backoff.Backoff // after a failed receive
	longest time.Duration   // of the failed receives of an outage; 0 without an outage
}

// OpenRelay opens the relay of an outbox.
func OpenRelay(ctx context.Context, cfg RelayConfig) (*Relay, error) {
	o := cfg.Outbox
	receiver, err := o.Conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: o.Queue})
	if err != nil {
		return nil, err
	}
	r := &Relay{receiver: receiver, receiving: pump.Reception{Queue: o.Queue}}
	r.pause = backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	r.RelayConfig, r.book = cfg, &o.book
	r.active, r.held = make(chan struct{}, relayActive), make(chan struct{}, relayHeld)
	if cfg.InOrder {
		r.active, r.held = make(chan struct{}, 1), make(chan struct{}, 1)
		return r, nil
	}
	receiver.Window(relayWaiting)
	return r, nil
}

// Close closes the relay, which must have ended.
func (r *Relay) Close() error { return r.receiver.Close() }

// Begin starts the relay, which runs beside the handlers. The result waits until the messages of the
// handlers are sent, for at most StopTimeout. Begin of a nil Relay does nothing.
func (r *Relay) Begin(ctx context.Context) (end func()) {
	if r == nil {
		return func() {}
	}
	stopping := make(chan struct{})
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	if !r.Outbox.Own {
		running.Go(func() { r.Outbox.watch(watching) })
	}
	running.Go(func() { r.callBack(watching) })
	running.Go(func() { r.run(ctx, stopping) })
	return func() {
		close(stopping)
		cancel()
		running.Wait()
		r.hasten(context.WithoutCancel(ctx), r.book.CallAll())
	}
}

// note records the error of a receive, and reports an outage.
func (r *Relay) note(ctx context.Context, err error) {
	r.Notifier.Outage(ctx, r.receiving.Queue, r.receiving.Note(err))
}

// run relays until stopping is closed and no stored message is left, or until StopTimeout has
// passed since the end of Run's context.
func (r *Relay) run(running context.Context, stopping <-chan struct{}) {
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
		if r.StopTimeout <= 0 {
			return
		}
		if backoff.Sleep(ctx, max(relayLast, r.StopTimeout-time.Since(began))) == nil {
			end()
		}
	})
	r.receiveAll(ctx, receiving)
}

// receiveAll receives batches and sends them, until ctx ends, or until receiving has ended and no row
// is left.
func (r *Relay) receiveAll(ctx, receiving context.Context) {
	var batches sync.WaitGroup
	defer batches.Wait()
	for r.takeTokens(ctx) {
		last, began := receiving.Err() != nil, time.Now()
		ds, err := r.listen(ctx, receiving)
		if len(ds) > 0 {
			if r.longest > 0 {
				r.works(ctx)
			}
			batches.Go(func() { r.send(ctx, ds) })
			continue
		}
		r.returnTokens()
		if last {
			return
		}
		if receiving.Err() == nil && err != nil {
			r.longest = max(r.longest, time.Since(began), 1)
			r.note(ctx, err)
			_ = r.pause.Wait(receiving)
		}
	}
}

// works records that a receive has succeeded after failed receives.
func (r *Relay) works(ctx context.Context) {
	r.note(ctx, nil)
	r.pause.Reset()
	r.longest = 0
}

// listen receives rows. After a failed receive, listen notes when the database answers again, also
// if no row is there.
func (r *Relay) listen(ctx, receiving context.Context) ([]transport.Delivery, error) {
	if r.longest > 0 {
		defer pump.Listen(receiving, r.receiver, r.longest, func() { r.works(ctx) })()
	}
	return r.receive(receiving, ctx)
}

// receive receives rows. When receiving has ended, receive waits only briefly for a row.
func (r *Relay) receive(receiving, ctx context.Context) ([]transport.Delivery, error) {
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

// takeTokens takes both tokens of a batch, and reports false when ctx ends first.
func (r *Relay) takeTokens(ctx context.Context) bool {
	if !take(ctx, r.held) {
		return false
	}
	if !take(ctx, r.active) {
		<-r.held
		return false
	}
	return true
}

func (r *Relay) returnTokens() {
	<-r.active
	<-r.held
}

// tokens are what a batch holds of the relay's active and held.
type tokens struct {
	relay        *Relay
	mu           sync.Mutex // guards the rest
	active, held bool
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

// yield returns both tokens, because a destination does not answer: messages for other destinations
// are sent meanwhile. A relay that sends in order keeps the tokens.
func (t *tokens) yield() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held || t.relay.InOrder {
		return
	}
	if t.relay.stray.Add(1) > relayStray {
		t.relay.stray.Add(-1)
		return
	}
	t.give()
}

// end returns the tokens of the batch. A batch without its tokens is a stray batch: yield has
// returned them.
func (t *tokens) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
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

// send sends the messages of a batch.
func (r *Relay) send(ctx context.Context, ds []transport.Delivery) {
	t := &tokens{relay: r, active: true, held: true}
	defer t.end()
	b := &batch{sender: &r.sender, yield: t.yield}
	b.decode(ctx, ds)
	stop := b.rows.renew(ctx, r.receiver, r.Outbox.Conn.Limits().Lease)
	defer stop()
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		b.dispatch(ctx)
		if len(b.ops) == 0 {
			break
		}
		if !r.InOrder {
			t.idle() // further batches are sent meanwhile
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

// callEvery is the time between two portions of rows that are called back.
const callEvery = 250 * time.Millisecond

// callBack has waiting rows received before the rows are due, until ctx ends.
func (r *Relay) callBack(ctx context.Context) {
	changed := r.book.Changed()
	for {
		handles, forgotten, left := r.book.Call()
		for _, s := range forgotten {
			r.Log.InfoContext(ctx, "no message of the outbox waits for a destination any more: whether it accepts messages is unknown",
				slog.String("queue", s.Destination), slog.Duration("after", time.Since(s.Since)))
		}
		if r.hasten(ctx, handles); left {
			if backoff.Sleep(ctx, callEvery) != nil {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// hasten has rows received now.
func (r *Relay) hasten(ctx context.Context, handles []string) {
	hastener, ok := r.Outbox.Conn.(transport.Hastener)
	if !ok || len(handles) == 0 {
		return
	}
	within, cancel := context.WithTimeout(ctx, backlogEvery)
	defer cancel()
	if err := hastener.Hasten(within, r.Outbox.Queue, handles); err != nil && ctx.Err() == nil {
		r.Log.WarnContext(ctx, "messages of the outbox whose destination answers again are sent later, when they are due",
			slog.Int("rows", len(handles)), slog.Any("error", err))
	}
}

// RelayStatus is the state of a relay.
type RelayStatus struct {
	Sent, Refused int64    // messages
	Problems      []string // reasons why the endpoint is not ready
	Warnings      []string
}

// Status returns the state of the relay.
func (r *Relay) Status() RelayStatus {
	s := RelayStatus{Sent: r.sent.Load(), Refused: r.refused.Load()}
	failing := func(doing string, r *pump.Reception) {
		if since, err := r.Failing(); err != nil {
			s.Problems = append(s.Problems, fmt.Sprintf("%s the outbox has been failing since %s: %v",
				doing, since.UTC().Format(time.RFC3339), work.WithAdvice(err)))
		}
	}
	failing("receiving from", &r.receiving)
	failing("removing sent messages from", &r.removal)
	if err := r.refusedRows.refusal(); err != nil {
		s.Problems = append(s.Problems,
			fmt.Sprintf("messages of the outbox wait, because their queue and the error queue have refused them: %v", err))
	}
	if err := r.unreadable.found(r.Outbox.Conn.Limits().Lease); err != nil {
		s.Warnings = append(s.Warnings, fmt.Sprintf("messages in the outbox cannot be read: %v", err))
	}
	return s
}
