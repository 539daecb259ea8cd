package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// sending is the part of a conn that sends.
type sending struct {
	*core
	exchanges *exchanges
	delays    *delayQueues
}

// Dispatch publishes all operations, then waits for the broker's answers.
func (s *sending) Dispatch(
	ctx context.Context, ops []transport.Operation,
) ([]transport.Receipt, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	b, err := s.newBatch(ctx)
	if err != nil {
		return nil, transport.FailAll(len(ops), unsent(err))
	}
	defer b.release()
	b.ops, b.flight = ops, make([]sent, 0, len(ops))
	b.publishAll(ctx)
	b.settle(ctx)
	if len(b.failed) == 0 {
		return nil, nil
	}
	slices.SortFunc(b.failed, func(x, y transport.OpError) int { return x.Index - y.Index })
	return nil, &transport.DispatchError{Ops: b.failed, Total: len(ops)}
}

// unsent marks an error that kept an operation from being sent as ErrUnreachable, unless it is a
// refusal by the broker.
func unsent(err error) error {
	var e *amqp.Error
	switch {
	case err == nil, errors.Is(err, transport.ErrClosed), errors.As(err, &e) && e.Server && e.Recover:
		return err
	default:
		return fmt.Errorf("%w: %w", err, transport.ErrUnreachable)
	}
}

// batch is a Dispatch in progress.
type batch struct {
	by     *sending
	to     *publisher
	sender *sender
	others []*sender // of trials
	ops    []transport.Operation
	flight []sent
	failed []transport.OpError

	tooLate bool // an answer to what is in flight has not come within maxAnswer

	postpones bool    // operations for destinations whose answers are late
	late      []route // these destinations

	encoded *transport.Message // the message that msg is made of
	msg     amqp.Publishing
}

// newBatch returns an empty batch on the open channel. The caller releases its sender.
func (s *sending) newBatch(ctx context.Context) (batch, error) {
	p, err := s.publishing.await(ctx)
	if err != nil {
		return batch{}, err
	}
	out, err := p.sender(ctx)
	if err != nil {
		return batch{}, err
	}
	return batch{by: s, to: p, sender: out}, nil
}

// publishAll publishes the operations. Those for destinations whose answers are late come last,
// because they wait.
func (b *batch) publishAll(ctx context.Context) {
	var postponed []int
	b.postpones = true
	for i := range b.ops {
		if err := b.publish(ctx, i); errors.Is(err, errPostponed) {
			postponed = append(postponed, i)
		} else if err != nil {
			b.failed = append(b.failed, transport.OpError{Index: i, Err: err})
		}
	}
	b.postpones = false
	for _, i := range postponed {
		if err := b.publish(ctx, i); err != nil {
			b.failed = append(b.failed, transport.OpError{Index: i, Err: err})
		}
	}
}

func (b *batch) publish(ctx context.Context, i int) error {
	op := &b.ops[i]
	if b.encoded != op.Message {
		b.msg, b.encoded = encode(op.Message), op.Message
	}
	now := time.Now()
	delay := op.Delay(now)
	msg, err := b.by.form(op, &b.msg, delay, now, b.to.user, b.to.Config.FrameSize)
	if err != nil {
		return err
	}
	exchange, key, err := b.address(ctx, op, delay)
	if err != nil {
		return err
	}
	return b.send(ctx, i, route{exchange, key, op.Queue != "" && !isDirectReply(op.Queue) || delay > 0}, msg)
}

// Check implements [transport.Checker].
func (s *sending) Check(op *transport.Operation) error {
	if op.Message == nil {
		return errNoDestination
	}
	var user string
	frame := 0
	if s.limits.MaxHeaders > 0 {
		frame = s.limits.MaxHeaders + frameReserve
	}
	if p, _, err := s.publishing.now(); err == nil {
		user, frame = p.user, p.Config.FrameSize
	}
	now := time.Now()
	delay := op.Delay(now)
	if err := checkAddress(op, delay); err != nil {
		return err
	}
	if isSmall(op, int(s.maxBody.Load()), frame) {
		return nil
	}
	msg := encode(op.Message)
	_, err := s.form(op, &msg, delay, now, user, frame)
	return err
}

// form returns the message of an operation, which msg is the encoded message of. It fails if the
// operation is refused for its content.
func (s *sending) form(
	op *transport.Operation, msg *amqp.Publishing, delay time.Duration, now time.Time, user string, frame int,
) (*amqp.Publishing, error) {
	msg.Expiration = expiration(op.TTL)
	if delay > 0 {
		var key string
		if op.Queue == "" && len(op.Types) > 0 {
			_, key = s.topology.address(op.Types)
		}
		msg = withDelay(*msg, now.Add(delay), op.TTL, key)
	}
	msg, err := withProperties(msg, op.Properties, user)
	if err != nil {
		return nil, err
	}
	if frame > 0 {
		frame -= brokersRoom(delay)
	}
	return s.fit(msg, op, user, frame)
}

// The broker adds headers to a message, and delivers it in a frame that may be larger than the
// limit, which no client reads.
const (
	// redeliveredRoom is for the counters of a quorum queue, x-delivery-count and x-acquired-count.
	redeliveredRoom = 64
	// delayedRoom is for the x-death entries of up to 28 delay queues.
	delayedRoom = 6 << 10
)

// brokersRoom returns the bytes of a frame that are left for headers of the broker.
func brokersRoom(delay time.Duration) int {
	if delay > 0 {
		return delayedRoom
	}
	return redeliveredRoom
}

// fit checks that a message can be sent. A copy that is too large leaves the received message's
// properties out.
func (s *sending) fit(
	msg *amqp.Publishing, op *transport.Operation, user string, frame int,
) (*amqp.Publishing, error) {
	most := int(s.maxBody.Load())
	err := check(msg, most, frame)
	if err == nil || len(op.Message.Native) == 0 {
		return msg, err
	}
	own := bare(msg)
	less, refused := withProperties(&own, op.Properties, user)
	if refused != nil || check(less, most, frame) != nil {
		return nil, err
	}
	return less, nil
}

// send publishes a message, as that of operation i.
func (b *batch) send(ctx context.Context, i int, to route, msg *amqp.Publishing) error {
	if !isDirectReply(to.key) {
		if err := b.admit(ctx, to); err != nil {
			return err
		}
	}
	if b.postpone(to) {
		return errPostponed
	}
	if err := b.awaitLate(ctx, to); err != nil {
		return err
	}
	if err := b.reserve(ctx); err != nil {
		return err
	}
	via, err := b.to.unanswered.refuse(to)
	if err != nil {
		<-b.to.window
		return err
	}
	on := b.on(via)
	var confirm *amqp.DeferredConfirmation
	err = b.to.ready(ctx)
	if err == nil {
		confirm, err = on.ch.PublishWithDeferredConfirm(to.exchange, to.key, to.mandatory, false, *msg)
		err = wrap(err, "publish") // the broker does not accept a part of a message
	}
	if err != nil {
		<-b.to.window
		return unsent(err)
	}
	if on.wear.isWorn(confirm.DeliveryTag) {
		on.wearOut()
	}
	b.flight = append(b.flight, sent{i, confirm, on, msg.MessageId, to})
	return nil
}

// errPostponed is the error of an operation that is published behind the others of its batch.
var errPostponed = errors.New("rabbitmq: answers for the queue are late")

// postpone reports whether an operation for a destination is published behind the others of the
// batch. All operations for the destination are, in their order.
func (b *batch) postpone(to route) bool {
	if !b.postpones || slices.Contains(b.late, to.destination()) {
		return b.postpones
	}
	if b.awaits(to) == nil {
		return false
	}
	b.late = append(b.late, to.destination())
	return true
}

// awaits returns a channel that is closed when a publish to a destination need not wait any more,
// or nil if it need not wait: answers are not late, or the broker takes no messages at all.
func (b *batch) awaits(to route) (again <-chan struct{}) {
	if b.to.blocked.Load() != nil {
		return nil
	}
	return b.to.unanswered.late(to)
}

// awaitLate waits while answers for a destination are late. The batch settles its own messages
// first, because they hold places in the window.
func (b *batch) awaitLate(ctx context.Context, to route) error {
	if b.awaits(to) == nil {
		return nil
	}
	b.settle(ctx)
	limit := time.NewTimer(maxAnswer)
	defer limit.Stop()
	for again := b.awaits(to); again != nil; again = b.awaits(to) {
		limit.Reset(maxAnswer)
		select {
		case <-again:
		case <-limit.C: // the destination is silent now
		case <-ctx.Done():
			return unsent(fmt.Errorf("rabbitmq: the broker does not confirm other messages for %q: %w",
				to.destination().name(), context.Cause(ctx)))
		}
	}
	return nil
}

// on returns the channel to publish on: via, unless via is nil or about to be closed.
func (b *batch) on(via *sender) *sender {
	if via == nil || via == b.sender || slices.Contains(b.others, via) {
		return cmp.Or(via, b.sender)
	}
	if !via.wear.use() {
		return b.sender
	}
	b.others = append(b.others, via)
	return via
}

// release ends the use of the channels.
func (b *batch) release() {
	for _, s := range b.others {
		b.to.release(s)
	}
	b.to.release(b.sender)
}

var errNoDestination = errors.New("rabbitmq: the operation has no message, or neither a queue nor types")

// checkAddress fails if no queue can have the name of an operation, or none can get it after the
// delay.
func checkAddress(op *transport.Operation, delay time.Duration) error {
	switch {
	case op.Queue == "" && len(op.Types) == 0:
		return errNoDestination
	case len(op.Queue) > maxShort:
		return fmt.Errorf("rabbitmq: send to %.40q...: a name of %d bytes: %w", op.Queue, len(op.Queue), transport.ErrNoQueue)
	case !utf8.ValidString(op.Queue):
		return fmt.Errorf("rabbitmq: send to %.100q: the name is not valid UTF-8: %w", op.Queue, transport.ErrNoQueue)
	case delay > 0 && isDirectReply(op.Queue):
		return errDelayedReply
	}
	if _, ok := delays.Steps(delay); delay > 0 && !ok {
		return fmt.Errorf("rabbitmq: a delay of %v is over the longest, %v", delay, delays.Max())
	}
	return nil
}

// address returns the exchange and the key of an operation: those of a queue, of the types in the
// topology, or of the queues in which delayed messages wait.
func (b *batch) address(
	ctx context.Context, op *transport.Operation, delay time.Duration,
) (exchange, key string, err error) {
	if err := checkAddress(op, delay); err != nil {
		return "", "", err
	}
	switch {
	case delay > 0:
		return b.delayed(ctx, op, delay)
	case op.Queue != "":
		return "", op.Queue, nil
	default:
		exchange, key = b.by.topology.address(op.Types)
		return exchange, key, unsent(b.ensureType(ctx, route{exchange: exchange, key: key}, op.Types))
	}
}

// reserve takes a place in the window. A batch larger than the window settles its own messages
// first: two batches that hold places and wait for each other's would wait for ever.
func (b *batch) reserve(ctx context.Context) error {
	select {
	case b.to.window <- struct{}{}:
		return nil
	default:
	}
	b.settle(ctx)
	select {
	case b.to.window <- struct{}{}:
		return nil
	case <-ctx.Done():
		return unsent(fmt.Errorf("rabbitmq: too many messages wait for the broker: %w", context.Cause(ctx)))
	}
}

// settle waits for the answers to everything in flight.
func (b *batch) settle(ctx context.Context) {
	for _, f := range b.flight {
		if err := b.answer(ctx, f); err != nil {
			b.failed = append(b.failed, transport.OpError{Index: f.index, Err: err})
		}
	}
	b.flight, b.tooLate = b.flight[:0], false
}

func (b *batch) answer(ctx context.Context, s sent) error {
	select {
	case <-s.confirm.Done():
		return b.to.outcome(s)
	default:
	}
	if b.tooLate {
		return b.abandon(s, errNoAnswer)
	}
	slow := slowTimers.Get().(*time.Timer) //nolint:errcheck // New makes no other values
	slow.Reset(lateAnswer)
	defer func() {
		slow.Stop()
		slowTimers.Put(slow)
	}()
	select {
	case <-s.confirm.Done():
		return b.to.outcome(s)
	case <-ctx.Done():
		return b.abandon(s, context.Cause(ctx))
	case <-slow.C:
		return b.lateAnswer(ctx, s)
	}
}

// slowTimers has timers that are stopped.
var slowTimers = sync.Pool{New: func() any {
	t := time.NewTimer(lateAnswer)
	t.Stop()
	return t
}}

// lateAnswer waits for an answer up to maxAnswer, without the time in which the broker does not
// read.
func (b *batch) lateAnswer(ctx context.Context, s sent) error {
	n := b.unanswered(s)
	if b.to.unanswered.wait(s.route, n, s.sender) {
		s.sender.wearOut()
	}
	defer b.to.unanswered.waited(s.route, n)
	pauses := []time.Duration{slowAnswer - lateAnswer, maxAnswer - slowAnswer}
	pause := time.NewTimer(pauses[0])
	defer pause.Stop()
	for past := 1; ; past++ {
		select {
		case <-s.confirm.Done():
			return b.to.outcome(s)
		case <-ctx.Done():
			return b.abandon(s, context.Cause(ctx))
		case <-pause.C:
		}
		switch {
		case past < len(pauses):
			if b.to.unanswered.tell(s.route, s.sender) {
				s.sender.wearOut()
			}
			pause.Reset(pauses[past])
		case b.to.blocked.Load() == nil:
			b.tooLate = true
			return b.abandon(s, errNoAnswer)
		default:
			pause.Reset(maxAnswer)
		}
	}
}

// unanswered returns the number of the batch's messages on the channel and for the destination of s
// that have no answer, s included.
func (b *batch) unanswered(s sent) (n int) {
	to := s.route.destination()
	for i := range b.flight {
		f := &b.flight[i]
		if f.sender == s.sender && f.route.destination() == to {
			select {
			case <-f.confirm.Done():
			default:
				n++
			}
		}
	}
	return max(1, n)
}

var errNoAnswer = fmt.Errorf("none within %v", maxAnswer)

// abandon returns without the answer.
func (b *batch) abandon(s sent, cause error) error {
	if b.to.abandon(s) {
		if b.tooLate {
			b.to.unanswered.silent(s.route)
		}
		return fmt.Errorf("rabbitmq: no answer from the broker for %q: %w: %w", s.route.destination().name(), cause, transport.ErrOutcomeUnknown)
	}
	return b.to.outcome(s) // The connection is closed, and the outcome is there at once.
}

// republish puts a copy of a message at the end of a queue.
func (s *sending) republish(ctx context.Context, queue string, d *amqp.Delivery) error {
	b, err := s.newBatch(ctx)
	if err != nil {
		return err
	}
	defer b.release()
	if err := b.send(ctx, 0, route{"", queue, true}, copyOf(d, b.to.user)); err != nil {
		return err
	}
	return b.answer(ctx, b.flight[0])
}

// copyOf returns a message as it was received, with the broker's headers about its delay and its
// dead-lettering. Its delivery count begins again, it is routed to one queue only, and has no other
// user than that of the connection.
func copyOf(d *amqp.Delivery, user string) *amqp.Publishing {
	table := maps.Clone(d.Headers)
	maps.DeleteFunc(table, func(name string, _ any) bool {
		return name == deliveryCount || name == acquiredCount || routes(name)
	})
	msg := &amqp.Publishing{
		Headers: table, Body: d.Body,
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
		DeliveryMode: d.DeliveryMode, Priority: d.Priority, Expiration: d.Expiration,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId,
	}
	if d.UserId == user {
		msg.UserId = user
	}
	return msg
}
