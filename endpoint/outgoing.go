package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// sender is the part of an endpoint that sends messages, also the messages of handlers.
type sender struct {
	cfg         Config
	types       *registry
	serializers serializers
	host        fault.Host
	live        atomic.Pointer[live] // nil unless the endpoint runs

	outgoing pipeline.Func[*pipeline.Outgoing]
	dispatch pipeline.Func[*pipeline.Dispatch]
}

// outgoing is a message that is sent, with room for the headers.
type outgoing struct {
	pipeline.Outgoing
	of      *messageType
	session *Session // nil outside a handler
	fields  [16]header.Field
}

// send sends m to queue, or by the route of m if queue is empty.
func (from *sender) send(ctx context.Context, m any, queue string, opts []SendOption, s *Session) error {
	return sendAs(ctx, from, header.IntentSend, m, queue, opts, SendOption.ApplySend, s)
}

// sendLocal sends m to the endpoint's own queue.
func (from *sender) sendLocal(ctx context.Context, m any, opts []SendOption, s *Session) error {
	if from.cfg.SendOnly {
		return fmt.Errorf("send %T: the endpoint has no queue of its own: it is SendOnly", m)
	}
	return from.send(ctx, m, from.cfg.Name, opts, s)
}

// publish sends m to the subscribers.
func (from *sender) publish(ctx context.Context, m any, opts []PublishOption, s *Session) error {
	return sendAs(ctx, from, header.IntentPublish, m, "", opts, PublishOption.ApplyPublish, s)
}

// sendAs sends m with options. An empty queue is the type's route, or of a published message none.
func sendAs[O any](
	ctx context.Context, from *sender, intent string, m any, queue string,
	opts []O, apply func(O, *pipeline.Outgoing), s *Session,
) error {
	if from.live.Load() == nil {
		return ErrNotRunning
	}
	t, err := from.types.of(m)
	if err != nil {
		return fmt.Errorf("%s %T: %w", verbs[intent], m, err)
	}
	out := &outgoing{of: t, session: s}
	out.Intent, out.Value, out.Types, out.MessageID = intent, m, t.types, uuid.New(time.Now())
	out.Headers, out.Queue = header.Within(out.fields[:]), queue
	if intent == header.IntentSend {
		out.Queue = cmp.Or(queue, t.queue)
	}
	if s != nil {
		out.Incoming = &s.in.Receive
	}
	for _, opt := range opts {
		apply(opt, &out.Outgoing)
	}
	if out.Err != nil {
		return fmt.Errorf("%s %T: %w", verbs[intent], m, out.Err)
	}
	return from.submit(ctx, out)
}

// submit runs a message through the Outgoing stage and keeps the message for the session, or sends
// the message if there is no session. The error names the verb and the type.
func (from *sender) submit(ctx context.Context, out *outgoing) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %s: %w", cmp.Or(verbs[out.Intent], "send"), out.of.name, err)
		}
	}()
	live := from.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	if err := from.resolve(live, &out.Outgoing); err != nil {
		return err
	}
	out.ViaOutbox = out.ViaOutbox || out.Tx != nil && live.Outbox != nil
	if err := check(&out.Outgoing, out.of, live); err != nil {
		return err
	}
	if err := checkTimer(out, live); err != nil {
		return err
	}
	if err := from.outgoing(ctx, &out.Outgoing); err != nil {
		return err
	}
	if out.Operation.Message == nil { // a behavior did not call next
		return nil
	}
	if out.session != nil && !out.Immediately {
		return out.session.unit.Keep(out.Operation)
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
			*queue = from.cfg.instanceQueue()
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
	errInHandler = errors.New("In is for sends outside handlers: in a handler leave it out, and with an outbox or " +
		"SendsAtomicWithReceive write in the transaction of the session")
	errViaInHandler = errors.New("ViaOutbox is for sends outside handlers: what a handler sends is stored with its message")
	errNoOutbox     = errors.New("the endpoint has no outbox: set Config.Outbox")
	errViaReceipt   = errors.New("there is no receipt of a message that is sent via the outbox")
)

// check returns an error for a message that cannot be sent, before the message is encoded.
func check(out *pipeline.Outgoing, t *messageType, live *live) error {
	if err := checkDestination(out, t, live.publishes); err != nil {
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
		return errInHandler
	case out.ViaOutbox && out.Incoming != nil:
		return errViaInHandler
	case out.ViaOutbox && live.Outbox == nil:
		return errNoOutbox
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
		return nil
	}
	return checkDelay(out, live.Limits.MaxDelay)
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
