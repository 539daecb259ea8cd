package nservicebus

import (
	"maps"
	"time"
)

// timeFormat is the form of times in headers.
const timeFormat = "2006-01-02 15:04:05:000000 Z"

// FailedCopy returns the copy of a message that an endpoint sends to the error queue when its
// handler has failed in the queue at address.
func FailedCopy(m *Message, address, endpoint, failure string) Message {
	return m.with(map[string]string{
		"NServiceBus.FailedQ":                     address,
		"NServiceBus.ProcessingEndpoint":          endpoint,
		"NServiceBus.ExceptionInfo.ExceptionType": "System.InvalidOperationException",
		"NServiceBus.ExceptionInfo.Message":       failure,
		"NServiceBus.ExceptionInfo.Source":        endpoint,
		"NServiceBus.ExceptionInfo.StackTrace":    "System.InvalidOperationException: " + failure + "\n   at Handler.Handle()",
		"NServiceBus.TimeOfFailure":               time.Now().UTC().Format(timeFormat),
	})
}

// AuditCopy returns the copy of a message that an endpoint sends to the audit queue.
func AuditCopy(m *Message, endpoint string) Message {
	now := time.Now().UTC().Format(timeFormat)
	return m.with(map[string]string{
		"NServiceBus.ProcessingEndpoint": endpoint,
		"NServiceBus.ProcessingStarted":  now,
		"NServiceBus.ProcessingEnded":    now,
	})
}

func (m *Message) with(headers map[string]string) Message {
	all := maps.Clone(m.Headers)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, headers)
	return Message{Headers: all, Body: m.Body}
}
