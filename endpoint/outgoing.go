package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// outgoing is a message on its way out, with room for its headers.
type outgoing struct {
	pipeline.Outgoing
	fields [16]header.Field
}

// send sends m, with errors that say what was to be sent. s is nil outside a handler.
func (e *Endpoint) send(ctx context.Context, intent string, m any, opts []Option, s *Session) error {
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	t, err := e.types.of(m)
	if err != nil {
		return fmt.Errorf("%s %T: %w", verbs[intent], m, err)
	}
	if err := e.sendTyped(ctx, live, intent, m, t, opts, s); err != nil {
		return fmt.Errorf("%s %s: %w", verbs[intent], t.name, err)
	}
	return nil
}

// sendLocal sends m to the endpoint's own queue.
func (e *Endpoint) sendLocal(ctx context.Context, m any, opts []Option, s *Session) error {
	if e.cfg.SendOnly {
		return fmt.Errorf("send %T: the endpoint has no queue of its own: it is SendOnly", m)
	}
	return e.send(ctx, header.IntentSend, m, append([]Option{To(e.cfg.Name)}, opts...), s)
}

// sendTyped runs m through the Outgoing stage and keeps it for the session, or sends
// it at once when there is none.
func (e *Endpoint) sendTyped(ctx context.Context, live *live, intent string, m any, t *messageType, opts []Option, s *Session) error {
	out := &outgoing{}
	out.Intent, out.Value, out.Types, out.MessageID = intent, m, t.types, uuid.New(time.Now())
	out.Headers = header.Within(out.fields[:])
	if s != nil {
		out.Incoming = &s.in.receive
	}
	e.address(&out.Outgoing, t)
	for _, opt := range opts {
		opt(&out.Outgoing)
	}
	if err := e.resolve(&out.Outgoing); err != nil {
		return err
	}
	if err := check(&out.Outgoing, t, live); err != nil {
		return err
	}
	if err := e.outgoing(ctx, &out.Outgoing); err != nil {
		return err
	}
	if out.Operation.Message == nil { // a behavior kept it back
		return nil
	}
	if s != nil && !out.Immediately {
		return s.keep(out.Operation)
	}
	return e.dispatchNow(ctx, &out.Outgoing)
}

var verbs = map[string]string{
	header.IntentSend: "send", header.IntentPublish: "publish", header.IntentReply: "reply",
}

// address sets where the message goes unless an option says otherwise.
func (e *Endpoint) address(out *pipeline.Outgoing, t *messageType) {
	switch {
	case out.Intent == header.IntentSend:
		out.Queue = t.queue
	case out.Intent == header.IntentReply && out.Incoming != nil:
		out.Queue = out.Incoming.Headers.Get(header.ReplyToAddress)
	}
}

// resolve puts the name of the instance's queue where an option asked for it.
func (e *Endpoint) resolve(out *pipeline.Outgoing) error {
	if out.Queue != thisInstance && out.ReplyTo != thisInstance {
		return nil
	}
	queue := e.cfg.instanceQueue()
	if queue == "" {
		return errors.New("this instance has no queue of its own: set Config.InstanceQueue")
	}
	if out.Queue == thisInstance {
		out.Queue = queue
	}
	if out.ReplyTo == thisInstance {
		out.ReplyTo = queue
	}
	return nil
}

// check finds what cannot work before anything is encoded.
func check(out *pipeline.Outgoing, t *messageType, live *live) error {
	delayed := out.After != 0 || !out.At.IsZero()
	switch {
	case out.Intent == header.IntentPublish && t.kind != kindEvent:
		return fmt.Errorf("it is a %v: only events are published; use Send", t.kind)
	case out.Intent == header.IntentPublish && out.Queue != "":
		return errors.New("a published message goes to its subscribers: To is for Send")
	case out.Intent == header.IntentPublish && delayed:
		return errors.New("a published message cannot be delayed")
	case out.Intent == header.IntentPublish && !live.publishes:
		return errors.New("the transport cannot publish")
	case out.Intent == header.IntentSend && t.kind == kindEvent:
		return errors.New("it is an event: use Publish")
	case out.Intent == header.IntentReply && out.Queue == "":
		return errors.New("the message has no reply-to address: use To")
	case out.Intent == header.IntentSend && out.Queue == "":
		return errors.New("no route: add one to Config.Routes or use To")
	case out.After < 0 || out.TTL < 0:
		return errors.New("After and ExpireAfter must not be negative")
	case out.MessageID == "":
		return errors.New("the message id is empty")
	case out.Tx != nil && out.Incoming != nil:
		return errInHandler
	case out.Tx != nil && !live.joins:
		return errNoJoiner
	case out.Tx == noTx{}:
		return errNilTx
	case out.Receipt != nil && out.Incoming != nil && !out.Immediately:
		return errors.New("there is no receipt yet when the message leaves with the handler's others: use Immediately")
	case delayed && live.limits.MaxDelay == 0:
		return errors.New("the transport offers no delays")
	}
	if !delayed {
		return nil
	}
	if d := delay(out, time.Now()); d > live.limits.MaxDelay {
		return fmt.Errorf("a delay of %v is over the transport's %v", d, live.limits.MaxDelay)
	}
	return nil
}

// delay is how long out is to be delayed.
func delay(out *pipeline.Outgoing, now time.Time) time.Duration {
	op := transport.Operation{After: out.After, At: out.At}
	return op.Delay(now)
}

// encode is the end of the Outgoing stage: headers, body, operation.
func (e *Endpoint) encode(_ context.Context, out *pipeline.Outgoing) error {
	if err := checkConversation(out); err != nil {
		return err
	}
	body, err := e.serializers.writer().Marshal(out.Value)
	if err != nil {
		return err
	}
	e.addHeaders(out, time.Now())
	out.Operation = transport.Operation{
		Message: &transport.Message{ID: out.MessageID, Headers: out.Headers, Body: body},
		Queue:   out.Queue, After: out.After, At: out.At, TTL: out.TTL, Properties: out.Properties,
		Receipt: out.Receipt != nil,
	}
	if out.Intent == header.IntentPublish {
		out.Operation.Types = out.Types
	}
	return nil
}

// dispatchNow sends one message by itself.
func (e *Endpoint) dispatchNow(ctx context.Context, out *pipeline.Outgoing) error {
	d := pipeline.Dispatch{Operations: []transport.Operation{out.Operation}, Tx: out.Tx}
	if err := e.dispatch(ctx, &d); err != nil {
		return err
	}
	if out.Receipt != nil && len(d.Receipts) > 0 {
		*out.Receipt = d.Receipts[0]
	}
	return nil
}
