package servicecontrol

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// sagaAudit is the name of the behavior in the Dispatch stage.
const sagaAudit = "servicecontrol saga audit"

// sagaUpdatedMessage is the type of a report. With an assembly ServiceControl would take it for an
// audited message.
const sagaUpdatedMessage = "ServiceControl.EndpointPlugin.Messages.SagaState.SagaUpdatedMessage"

// sagaUpdated is the state of an instance after a message.
type sagaUpdated struct {
	SagaID            string `json:"SagaId"`
	SagaType          string
	SagaState         string // JSON as a text
	IsNew             bool
	IsCompleted       bool
	StartTime         instant
	FinishTime        instant
	Endpoint          string
	Initiator         sagaInitiator
	ResultingMessages []sagaResult
}

// sagaInitiator is the message that was handled.
type sagaInitiator struct {
	InitiatingMessageID  string `json:"InitiatingMessageId"`
	MessageType          string
	IsSagaTimeoutMessage bool
	TimeSent             instant
	OriginatingMachine   string
	OriginatingEndpoint  string
	Intent               string
}

// sagaResult is a message that the instance has sent.
type sagaResult struct {
	ResultingMessageID string `json:"ResultingMessageId"`
	MessageType        string
	TimeSent           instant
	DeliveryAt         *instant
	DeliveryDelay      *string
	Destination        string
	Intent             string
}

// auditSagas adds a report for each call of a saga to the messages of its handlers, and headers to
// the audit copy.
func (r *reporter) auditSagas(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		if d.Incoming == nil {
			return next(ctx, d)
		}
		calls := slices.DeleteFunc(slices.Clone(saga.Invocations(d.Incoming)), func(i saga.Invocation) bool {
			return i.Err != nil || i.Ignored != ""
		})
		if len(calls) == 0 {
			return next(ctx, d)
		}
		sent := d.Operations
		reports := make([]transport.Operation, len(calls))
		for i := range calls {
			report, err := r.sagaReport(d.Incoming, &calls[i], sent)
			if err != nil {
				return err
			}
			reports[i] = report
		}
		d.Operations = append(slices.Clip(sent), reports...)
		d.Incoming.Audit.Set(header.InvokedSagas, joined(calls, func(i *saga.Invocation) string { return sagaType(i) + ":" + i.ID }))
		d.Incoming.Audit.Set(header.SagaStateChange, sagaChanges(calls))
		return next(ctx, d)
	}
}

// sagaReport returns the report of a call. sent are the messages of all handlers.
func (r *reporter) sagaReport(
	in *pipeline.Receive, i *saga.Invocation, sent []transport.Operation,
) (transport.Operation, error) {
	h := &in.Headers
	timeSent, _ := header.ParseTime(h.Get(header.TimeSent))
	m := sagaUpdated{
		SagaID: i.ID, SagaType: sagaType(i), SagaState: cmp.Or(string(i.State), "{}"), IsNew: i.New, IsCompleted: i.Completed,
		StartTime: instant(i.Started), FinishTime: instant(i.Finished), Endpoint: r.endpoint,
		Initiator: sagaInitiator{
			InitiatingMessageID: in.Message.ID, MessageType: firstTypeName(*h), IsSagaTimeoutMessage: i.Timeout,
			TimeSent: instant(timeSent), OriginatingMachine: h.Get(header.OriginatingMachine),
			OriginatingEndpoint: h.Get(header.OriginatingEndpoint), Intent: h.Get(header.MessageIntent),
		},
		ResultingMessages: sagaResults(i.ID, sent),
	}
	body, err := json.Marshal(m)
	if err != nil {
		return transport.Operation{}, fmt.Errorf("saga audit: %w", err)
	}
	report := &transport.Message{ID: newGUID(), Body: body}
	report.Headers.Set(header.MessageID, report.ID)
	report.Headers.Set(header.MessageIntent, header.IntentSend)
	report.Headers.Set(header.ReplyToAddress, r.endpoint)
	report.Headers.Set(header.EnclosedMessageTypes, sagaUpdatedMessage)
	report.Headers.Set(header.ContentType, "application/json")
	return transport.Operation{Message: report, Queue: r.SagaAuditQueue}, nil
}

// sagaResults returns the messages that an instance has sent.
func sagaResults(id string, sent []transport.Operation) []sagaResult {
	results := []sagaResult{} // null is no list
	for k := range sent {
		op := &sent[k]
		if op.Message == nil || op.Message.Headers.Get(header.OriginatingSagaID) != id {
			continue
		}
		h := op.Message.Headers
		timeSent, _ := header.ParseTime(h.Get(header.TimeSent))
		result := sagaResult{
			ResultingMessageID: op.Message.ID, MessageType: firstTypeName(h), TimeSent: instant(timeSent),
			Destination: op.Queue, Intent: h.Get(header.MessageIntent),
		}
		if due, err := header.ParseTime(h.Get(header.DeliverAt)); err == nil {
			at, delay := instant(due), timeSpan(due.Sub(timeSent))
			result.DeliveryAt, result.DeliveryDelay = &at, &delay
		}
		results = append(results, result)
	}
	return results
}

// timeSpan returns a duration as .NET writes it, to the second.
func timeSpan(d time.Duration) string {
	s := int64(max(0, d).Round(time.Second) / time.Second)
	text := fmt.Sprintf("%02d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if days := s / 86400; days > 0 {
		text = fmt.Sprintf("%d.%s", days, text)
	}
	return text
}

// sagaChanges returns the changes of each instance, once: Completed counts more than New, and New
// more than Updated.
func sagaChanges(calls []saga.Invocation) string {
	var ids []string
	changes := map[string]string{}
	for k := range calls {
		i := &calls[k]
		if _, known := changes[i.ID]; !known {
			ids, changes[i.ID] = append(ids, i.ID), "Updated"
		}
		switch {
		case i.Completed:
			changes[i.ID] = "Completed"
		case i.New && changes[i.ID] == "Updated":
			changes[i.ID] = "New"
		}
	}
	for k, id := range ids {
		ids[k] = id + ":" + changes[id]
	}
	return strings.Join(ids, ";")
}

// joined returns a text for each call, without repetitions.
func joined(calls []saga.Invocation, text func(*saga.Invocation) string) string {
	var all []string
	for k := range calls {
		if t := text(&calls[k]); !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return strings.Join(all, ";")
}

// sagaType returns the type of a saga without characters that separate types in the header.
func sagaType(i *saga.Invocation) string {
	return strings.NewReplacer(":", "_", ";", "_", ",", "_").Replace(i.Type)
}

// firstTypeName returns the most concrete type of a message, without an assembly.
func firstTypeName(h header.Map) string {
	for name := range header.TypeNames(h.Get(header.EnclosedMessageTypes)) {
		return name
	}
	return ""
}
