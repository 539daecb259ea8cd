package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// sender is the part of an endpoint that sends messages, also the messages of handlers.
type sender struct {
	name          string // of the endpoint
	instanceQueue string // the queue of this process; "" for none
	sendOnly      bool   // the endpoint has no queue
	catalog       *catalog
	serializers   serializers
	host          fault.Host
	live          atomic.Pointer[live] // nil unless the endpoint runs

	outgoing pipeline.Func[*pipeline.Outgoing]
	dispatch pipeline.Func[*pipeline.Dispatch]
}

// outgoing is a message that is sent, with room for the headers.
type outgoing struct {
	pipeline.Outgoing
	of     *messageType
	scope  *scope // nil outside a handler
	fields [16]header.Field
}

// scope is a handler that sends messages.
type scope struct {
	unit     work.Unit
	receive  *pipeline.Receive
	recovers bool // the handler is a Recover stage or OnFinalFailure
}

// caller is a Session, whose handler may have records.
type caller interface {
	// addOutgoing adds the headers that the handler's records have for each message.
	addOutgoing(h *header.Map)
}

// send sends m to queue, or by the route of m if queue is empty. If the compiler inlined send, the
// options of each caller would escape to the heap.
//
//go:noinline
func (from *sender) send(ctx context.Context, m any, queue string, opts []SendOption, in *scope) error {
	return sendAs(ctx, from, header.IntentSend, m, queue, opts, SendOption.ApplySend, in)
}

// sendLocal sends m to the endpoint's own queue.
func (from *sender) sendLocal(ctx context.Context, m any, opts []SendOption, in *scope) error {
	if from.sendOnly {
		return fmt.Errorf("send %T: the endpoint has no queue of its own: it is SendOnly", m)
	}
	return from.send(ctx, m, from.name, opts, in)
}

// publish sends m to the subscribers. It is not inlined for the same reason as send.
//
//go:noinline
func (from *sender) publish(ctx context.Context, m any, opts []PublishOption, in *scope) error {
	return sendAs(ctx, from, header.IntentPublish, m, "", opts, PublishOption.ApplyPublish, in)
}

// sendAs sends m with options. An empty queue is the type's route, or of a published message none.
func sendAs[O any](
	ctx context.Context, from *sender, intent string, m any, queue string,
	opts []O, apply func(O, *pipeline.Outgoing), in *scope,
) error {
	live := from.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	t, err := from.catalog.of(m)
	if err != nil {
		return fmt.Errorf("%s %T: %w", verbs[intent], m, err)
	}
	out := &outgoing{of: t, scope: in}
	out.Intent, out.Value, out.Types, out.MessageID = intent, m, t.types, uuid.New(time.Now())
	out.Headers, out.Queue = header.Within(out.fields[:]), queue
	if intent == header.IntentSend {
		out.Queue = cmp.Or(queue, t.queue)
	}
	if in != nil {
		out.Incoming = in.receive
	}
	for _, opt := range opts {
		apply(opt, &out.Outgoing)
	}
	if out.Err != nil {
		return fmt.Errorf("%s %T: %w", verbs[intent], m, out.Err)
	}
	return from.submit(ctx, live, out)
}

// submit runs a message through the Outgoing stage and keeps the message for the session, or sends
// the message if there is no session. The error names the verb and the type.
func (from *sender) submit(ctx context.Context, live *live, out *outgoing) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %s: %w", cmp.Or(verbs[out.Intent], "send"), out.of.name, err)
		}
	}()
	if err := from.resolve(live, &out.Outgoing); err != nil {
		return err
	}
	out.ViaOutbox = out.ViaOutbox || out.Tx != nil && live.Outbox != nil
	if err := check(out, live); err != nil {
		return err
	}
	if err := from.outgoing(ctx, &out.Outgoing); err != nil {
		return err
	}
	if out.Operation.Message == nil { // a behavior did not call next
		return nil
	}
	if out.scope != nil && !out.Immediately {
		return out.scope.unit.Keep(out.Operation)
	}
	d := pipeline.Dispatch{Operations: []transport.Operation{out.Operation}, Tx: out.Tx, ViaOutbox: out.ViaOutbox || out.Timer != ""}
	if err := from.dispatch(ctx, &d); err != nil {
		return err
	}
	if out.Receipt != nil && len(d.Receipts) > 0 {
		*out.Receipt = d.Receipts[0]
	}
	return nil
}

var verbs = map[string]string{
	header.IntentSend: "send", header.IntentPublish: "publish", header.IntentReply: "reply",
}

// resolve replaces thisInstance by the name of the instance's queue, and an address by the short
// name of the queue.
func (from *sender) resolve(live *live, out *pipeline.Outgoing) error {
	for _, queue := range []*string{&out.Queue, &out.ReplyTo} {
		if *queue == thisInstance {
			*queue = from.instanceQueue
			if *queue == "" {
				return errors.New("this instance has no queue of its own: set Config.InstanceQueue")
			}
		}
	}
	out.Queue = live.names.Of(out.Queue)
	return nil
}

var (
	errNilTx = errors.New("the transaction of In is nil: begin it first")
	errNoTx  = errors.New("neither the transport nor an outbox can send in a database transaction: set Config.Outbox, " +
		"or commit first, then send without In; a crash between the two loses the message")
	errViaReceipt = errors.New("there is no receipt of a message that is sent via the outbox")
)

// check returns an error for a message that cannot be sent, before the message is encoded.
func check(out *outgoing, live *live) error {
	if err := checkDestination(&out.Outgoing, out.of, live.publishes); err != nil {
		return err
	}
	switch {
	case verbs[out.Intent] == "":
		return fmt.Errorf("the intent %q is unknown", out.Intent)
	case len(out.Types) == 0:
		return errors.New("the message has no types")
	case out.After < 0 || out.TTL < 0:
		return errors.New("After and ExpireAfter must not be negative")
	case out.MessageID == "":
		return errors.New("the message id is empty")
	case out.Tx != nil && out.Incoming != nil:
		return errors.New("In is for sends outside handlers: in a handler leave it out, and with " +
			"an outbox or SendsAtomicWithReceive write in the transaction of the session")
	case out.ViaOutbox && out.Incoming != nil:
		return errors.New("ViaOutbox is for sends outside handlers: " +
			"what a handler sends is stored with its message")
	case out.ViaOutbox && live.Outbox == nil:
		return errors.New("the endpoint has no outbox: set Config.Outbox")
	case out.ViaOutbox && out.Receipt != nil:
		return errViaReceipt
	case out.Tx != nil && !live.joins:
		return errNoTx
	case out.Tx == noTx{}:
		return errNilTx
	case out.Receipt != nil && out.Incoming != nil && !out.Immediately:
		return errors.New("there is no receipt yet when the message is sent with the handler's others: use Immediately")
	}
	if out.Timer != "" { // the message waits in the outbox
		return checkTimer(out, live)
	}
	return checkDelay(&out.Outgoing, live.Limits.MaxDelay)
}

// checkDestination returns an error where the verb does not fit the type or the queue.
func checkDestination(out *pipeline.Outgoing, t *messageType, publishes bool) error {
	switch publish := out.Intent == header.IntentPublish; {
	case publish && t.kind != kindEvent:
		return fmt.Errorf("it is a %v: only events are published; use Send", t.kind)
	case publish && (out.Queue != "" || delayed(out)):
		return errors.New("a published message goes to its subscribers at once: it has no queue and no delay")
	case publish && !publishes:
		return errors.New("the transport cannot publish")
	case out.Intent == header.IntentSend && t.kind == kindEvent:
		return errors.New("it is an event: use Publish")
	case out.Intent == header.IntentReply && out.Queue == "":
		return errors.New("the message has no reply-to address: use To")
	case out.Intent == header.IntentSend && out.Queue == "":
		return errors.New("no route: " +
			"register the command with a queue, as in Command[T](name).To(queue), or use the option To")
	}
	return nil
}

func checkDelay(out *pipeline.Outgoing, longest time.Duration) error {
	if !delayed(out) {
		return nil
	}
	if longest == 0 {
		return errors.New("the transport offers no delays")
	}
	if d := delay(out, time.Now()); d > longest {
		return fmt.Errorf("a delay of %v is over the transport's %v", d, longest)
	}
	return nil
}

func delayed(out *pipeline.Outgoing) bool { return out.After != 0 || !out.At.IsZero() }

// delay returns the delay of a message.
func delay(out *pipeline.Outgoing, now time.Time) time.Duration {
	op := transport.Operation{After: out.After, At: out.At}
	return op.Delay(now)
}

// encode is the end of the Outgoing stage, and makes headers, body and operation.
func (from *sender) encode(_ context.Context, out *pipeline.Outgoing) error {
	if err := checkConversation(out); err != nil {
		return err
	}
	live := from.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	body, err := from.serializers.marshal(out.Types, out.Value)
	if err != nil {
		return err
	}
	from.addHeaders(live, out, time.Now())
	out.Operation = transport.Operation{
		Message: &transport.Message{ID: out.MessageID, Headers: out.Headers, Body: body},
		Queue:   live.names.Of(out.Queue), After: out.After, At: out.At, TTL: out.TTL, Properties: out.Properties,
		Receipt: out.Receipt != nil, Name: out.Timer,
	}
	if out.Intent == header.IntentPublish {
		out.Operation.Types = out.Types
	}
	return nil
}

// checkTimer returns an error for a timer that cannot be set.
func checkTimer(out *outgoing, live *live) error {
	name, err := timer.Parse(out.Timer)
	if err == nil {
		err = live.checkTimer(name)
	}
	switch {
	case err != nil:
		return err
	case out.Intent != header.IntentSend:
		return errors.New("only a message that is sent can be a timer")
	case !delayed(&out.Outgoing):
		return errors.New("a timer is a message with a delay: use After or At")
	case out.Receipt != nil:
		return errViaReceipt
	case out.scope != nil && out.scope.recovers:
		return errRecovers
	}
	return nil
}

// addHeaders sets the headers that describe the body and the sending of the message, and adds the
// others that the caller and behaviors have not set.
func (from *sender) addHeaders(live *live, out *pipeline.Outgoing, now time.Time) {
	h := &out.Headers
	h.Set(header.MessageID, out.MessageID)
	from.addCausation(out)
	h.Set(header.MessageIntent, out.Intent)
	addSaga(out)
	if out.Incoming != nil {
		if s, ok := out.Incoming.Sender().(caller); ok {
			s.addOutgoing(h)
		}
	}
	if reply := out.ReplyTo; reply != "" {
		h.SetDefault(header.ReplyToAddress, live.names.Address(reply))
	} else if !from.sendOnly {
		h.SetDefault(header.ReplyToAddress, live.names.Self)
	}
	h.Set(header.OriginatingEndpoint, from.name)
	h.Set(header.OriginatingMachine, from.host.Machine)
	h.Set(header.OriginatingHostID, from.host.HostID)
	h.Set(header.TimeSent, header.FormatTime(now))
	h.Set(header.ContentType, from.serializers.writer().ContentType())
	h.Set(header.EnclosedMessageTypes, from.enclosed(out))
	if d := delay(out, now); d > 0 {
		h.Set(header.DeliverAt, header.FormatTime(now.Add(d)))
	} else {
		h.Del(header.DeliverAt)
	}
	if out.TTL > 0 {
		h.Set(header.TimeToBeReceived, header.FormatDuration(out.TTL))
	} else {
		h.Del(header.TimeToBeReceived)
	}
}

// checkConversation returns an error for another conversation id without [StartNewConversation].
func checkConversation(out *pipeline.Outgoing) error {
	if out.Incoming == nil {
		return nil
	}
	id, set := out.Headers.Lookup(header.ConversationID)
	current := out.Incoming.Headers.Get(header.ConversationID)
	if !set || current == "" || id == current || out.Headers.Get(header.PreviousConversation) == current {
		return nil
	}
	return fmt.Errorf("it is part of conversation %q and cannot be given %q: use StartNewConversation", current, id)
}

// addCausation adds the headers that name the message being handled.
func (from *sender) addCausation(out *pipeline.Outgoing) {
	correlation, conversation := out.MessageID, ""
	if in := out.Incoming; in != nil {
		correlation = cmp.Or(in.Headers.Get(header.CorrelationID), in.Message.ID)
		conversation = in.Headers.Get(header.ConversationID)
	}
	if conversation == "" {
		conversation = uuid.New(time.Now())
	}
	out.Headers.SetDefault(header.CorrelationID, correlation)
	out.Headers.SetDefault(header.ConversationID, conversation)
	if out.Incoming != nil {
		out.Headers.Set(header.RelatedTo, out.Incoming.Message.ID)
	}
}

// addSaga names the saga of a reply: the one that sent the request, if any. An empty id is that of
// no saga.
func addSaga(out *pipeline.Outgoing) {
	if out.Intent != header.IntentReply || out.Incoming == nil {
		return
	}
	if id, set := out.Headers.Lookup(header.SagaID); set && id == "" {
		out.Headers.Del(header.SagaID)
		out.Headers.Del(header.SagaType)
		return
	}
	request := &out.Incoming.Headers
	if id, ok := request.Lookup(header.OriginatingSagaID); ok {
		out.Headers.SetDefault(header.SagaID, id)
	}
	if name, ok := request.Lookup(header.OriginatingSagaType); ok {
		out.Headers.SetDefault(header.SagaType, name)
	}
}

// enclosed returns the types header. It is joined once per type, not once per message.
func (from *sender) enclosed(out *pipeline.Outgoing) string {
	if t, err := from.catalog.of(out.Value); err == nil && len(out.Types) == len(t.types) && out.Types[0] == t.types[0] {
		return t.enclosed
	}
	return header.JoinTypes(out.Types...)
}

// dispatchNow sends operations of no message at once, or in the caller's transaction.
func (from *sender) dispatchNow(ctx context.Context, d *pipeline.Dispatch) error {
	live := from.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	if d.ViaOutbox {
		return live.Timers.Send(ctx, d.Tx, d.Operations)
	}
	err := errNoTx
	if d.Tx == nil {
		d.Receipts, err = live.conn.Dispatch(ctx, d.Operations)
	} else if dispatcher, ok := live.conn.(transport.TxDispatcher); ok {
		d.Receipts, err = dispatcher.DispatchIn(ctx, d.Tx, d.Operations)
	}
	return copies.Single(err)
}

// relay is the end of the Relay stage.
func (from *sender) relay(ctx context.Context, relayed *pipeline.Relay) error {
	live := from.live.Load()
	if live == nil { // a behavior has kept next
		return ErrNotRunning
	}
	_, err := live.conn.Dispatch(ctx, relayed.Operations)
	return err
}
