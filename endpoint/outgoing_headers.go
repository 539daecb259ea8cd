package endpoint

import (
	"cmp"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/pipeline"
)

// addHeaders sets the headers that describe the body and the sending of the message, and adds the
// others that the caller and behaviors have not set.
func (from *sender) addHeaders(live *live, out *pipeline.Outgoing, now time.Time) {
	h := &out.Headers
	h.Set(header.MessageID, out.MessageID)
	from.addCausation(out)
	h.Set(header.MessageIntent, out.Intent)
	addSaga(out)
	if out.Incoming != nil {
		attemptOf(out.Incoming).session.currentCall().AddOutgoing(h)
	}
	if reply := out.ReplyTo; reply != "" {
		h.SetDefault(header.ReplyToAddress, live.names.Address(reply))
	} else if !from.cfg.SendOnly {
		h.SetDefault(header.ReplyToAddress, live.names.Self)
	}
	h.Set(header.OriginatingEndpoint, from.cfg.Name)
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
	if t, err := from.types.of(out.Value); err == nil && len(out.Types) == len(t.types) && out.Types[0] == t.types[0] {
		return t.enclosed
	}
	return header.JoinTypes(out.Types...)
}
