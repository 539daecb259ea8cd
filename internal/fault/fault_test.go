package fault

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

var host = Host{Endpoint: "billing", Machine: "m1", HostID: "1f0c", DisplayName: "billing on m1"}

// fields are headers by name.
func fields(h header.Map) map[string]string {
	m := map[string]string{}
	for name, value := range h.All() {
		m[name] = value
	}
	return m
}

func headers(nameValues ...string) header.Map {
	var h header.Map
	for i := 0; i < len(nameValues); i += 2 {
		h.Set(nameValues[i], nameValues[i+1])
	}
	return h
}

func TestFaultHeadersAreThoseThatServicePulseShows(t *testing.T) {
	f := recoverability.Failure{
		Err: fmt.Errorf("handler Charge: %w", &cardError{io.EOF}), Queue: "billing-in",
		Attempt: 6, AttemptExact: true, FirstFailure: first, Now: first.Add(61 * time.Second),
	}
	want := map[string]string{
		"NServiceBus.FailedQ":                          "billing-in",
		"NServiceBus.TimeOfFailure":                    "2026-03-01 12:01:01:000000 Z",
		"NServiceBus.ExceptionInfo.ExceptionType":      "*fault.cardError",
		"NServiceBus.ExceptionInfo.InnerExceptionType": "*errors.errorString",
		"NServiceBus.ExceptionInfo.Message":            "handler Charge: card refused: EOF",
		"NServiceBus.ExceptionInfo.StackTrace":         "*fault.cardError: handler Charge: card refused: EOF",
		"NServiceBus.ProcessingEndpoint":               "billing",
		"NServiceBus.ProcessingMachine":                "m1",
		"$.diagnostics.hostid":                         "1f0c",
		"$.diagnostics.hostdisplayname":                "billing on m1",
		"Holdfast.Fault.Attempts":                      "6",
		"Holdfast.Fault.Class":                         "*fault.cardError",
		"Holdfast.Fault.FirstFailure":                  "2026-03-01 12:00:00:000000 Z",
	}
	if diff := cmp.Diff(want, fields(Headers(f, host, Frame{}))); diff != "" {
		t.Error(diff)
	}

	f.AttemptExact = false
	want["Holdfast.Fault.Attempts.Exact"] = "false"
	if diff := cmp.Diff(want, fields(Headers(f, host, Frame{}))); diff != "" {
		t.Error("where the broker does not count:", diff)
	}
}

func TestFaultTypesAreThoseOfTheCause(t *testing.T) {
	card := &cardError{io.EOF}
	tests := map[string]struct {
		err             error
		outside, inside string // type names
	}{
		"plain":                      {errBroken, "*errors.errorString", ""},
		"one's own":                  {&cardError{errBroken}, "*fault.cardError", "*errors.errorString"},
		"text around it":             {fmt.Errorf("a: %w", fmt.Errorf("b: %w", card)), "*fault.cardError", "*errors.errorString"},
		"unrecoverable":              {recoverability.Unrecoverable(card), "*fault.cardError", "*errors.errorString"},
		"unrecoverable, text around": {fmt.Errorf("a: %w", recoverability.Unrecoverable(fmt.Errorf("b: %w", card))), "*fault.cardError", "*errors.errorString"},
		"retry after":                {recoverability.RetryAfter(recoverability.Unrecoverable(card), 0), "*fault.cardError", "*errors.errorString"},
		"a mark inside":              {&cardError{recoverability.Unrecoverable(embedding{errBroken})}, "*fault.cardError", "fault.embedding"},
		"text inside":                {&cardError{fmt.Errorf("a: %w", embedding{errBroken})}, "*fault.cardError", "fault.embedding"},
		"joined":                     {errors.Join(card, errBroken), "*errors.joinError", "*fault.cardError"},
		"joined, text around":        {fmt.Errorf("a: %w", errors.Join(card, errBroken)), "*errors.joinError", "*fault.cardError"},
		"several %w":                 {fmt.Errorf("%w, %w", card, errBroken), "*fmt.wrapErrors", "*fault.cardError"},
		"several, the first nil":     {several{nil, card}, "fault.several", "*fault.cardError"},
		"several, all nil":           {several{nil, nil}, "fault.several", ""},
		"several, none":              {several{}, "fault.several", ""},
		"Unwrap panics":              {badUnwrap{}, "fault.badUnwrap", ""},
		"nil pointer":                {(*cardError)(nil), "*fault.cardError", ""},
		"no error at all":            {nil, "<nil>", ""},
		"a type that has moved":      {&recoverability.PanicError{Value: "x"}, "*endpoint.PanicError", ""},
		"the same inside":            {&cardError{&recoverability.PanicError{Value: "x"}}, "*fault.cardError", "*endpoint.PanicError"},
		"the same, a nil pointer":    {(*recoverability.PanicError)(nil), "*endpoint.PanicError", ""},
		"FaultType panics":           {badType{}, "fault.badType", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := Headers(recoverability.Failure{Err: test.err}, Host{}, Frame{})
			if got := h.Get(header.ExceptionType); got != test.outside {
				t.Errorf("type %q, want %q", got, test.outside)
			}
			got, there := h.Lookup(header.InnerExceptionType)
			if got != test.inside || there != (test.inside != "") {
				t.Errorf("inner type %q (there: %v), want %q", got, there, test.inside)
			}
		})
	}
}

type badType struct{}

func (badType) Error() string     { return "bad type" }
func (badType) FaultType() string { panic("no name") }

type several []error

func (several) Error() string     { return "several" }
func (s several) Unwrap() []error { return s }

func TestFaultTextOfAnErrorThatCannotSpeak(t *testing.T) {
	want := "*fault.cardError: its Error method panicked"
	h := Headers(recoverability.Failure{Err: (*cardError)(nil)}, Host{}, Frame{})
	if got := h.Get(header.ExceptionMessage); got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	h = Headers(recoverability.Failure{Err: badError{}}, Host{}, Frame{})
	if got := h.Get(header.ExceptionMessage); !strings.HasPrefix(got, "fault.badError: its Error") {
		t.Errorf("message %q", got)
	}
}

// badError panics with a value that cannot be printed.
type badError struct{}

func (e badError) Error() string { panic(e) }

func TestFaultStackIsThatOfThePanic(t *testing.T) {
	tests := map[string]struct {
		err  error
		want string
	}{
		"a panic": {panicked{stack: "goroutine 1 [running]"}, "fault.panicked: panicked\n   --- Go stack:\ngoroutine 1 [running]"},
		"deep in the chain": {
			recoverability.Unrecoverable(fmt.Errorf("handler: %w", panicked{stack: "deep"})),
			"fault.panicked: handler: panicked\n   --- Go stack:\ndeep",
		},
		"one that panics again": {panicked{}, "fault.panicked: panicked"},
	}
	for name, test := range tests {
		h := Headers(recoverability.Failure{Err: test.err}, Host{}, Frame{})
		if got := h.Get(header.ExceptionStackTrace); got != test.want {
			t.Errorf("%s: stack %q, want %q", name, got, test.want)
		}
	}
}

type panicked struct{ stack string }

func (panicked) Error() string { return "panicked" }
func (p panicked) StackTrace() string {
	if p.stack == "" {
		panic("no stack")
	}
	return p.stack
}

func TestFaultTextsAreCutBetweenCharacters(t *testing.T) {
	const most = 16 << 10
	fill := strings.Repeat("x", most-2)
	tests := map[string]struct{ text, want string }{
		"empty":                     {"", ""},
		"exactly as long":           {fill + "yz", fill + "yz"},
		"one byte too long":         {fill + "yzz", fill + "yz"},
		"a character over the edge": {fill + "日本", fill},
		"two bytes over the edge":   {fill + "yé", fill + "y"},
		"four bytes over the edge":  {fill[1:] + "😀", fill[1:]},
		"up to the edge":            {fill + "é!", fill + "é"},
		"not UTF-8":                 {"caf\xe9 \xff\xfe!", "caf? ?!"},
		"continuations only":        {strings.Repeat("\x80", 1<<20), "?"},
		"a megabyte":                {strings.Repeat("0123456789abcdef", 1<<16), strings.Repeat("0123456789abcdef", 1<<10)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := Headers(recoverability.Failure{Err: panicked{stack: test.text + " "}}, Host{}, Frame{})
			if len(h.Get(header.ExceptionStackTrace)) > most {
				t.Error("the stack is too long")
			}
			h = Headers(recoverability.Failure{Err: errors.New(test.text)}, Host{}, Frame{})
			if got := h.Get(header.ExceptionMessage); got != test.want {
				t.Errorf("%d bytes, want %d: …%q", len(got), len(test.want), got[max(0, len(got)-20):])
			}
			if got := h.Get(header.ExceptionStackTrace); got != "*errors.errorString: "+test.want {
				t.Errorf("stack of %d bytes: …%q, want the type and the whole text", len(got), got[max(0, len(got)-20):])
			}
		})
	}
}

func TestDelayHeadersCountTheRetry(t *testing.T) {
	received := headers("Colour", "red", header.Retries, "1", header.RetriesTimestamp, "old", header.MessageID, "7")
	f := recoverability.Failure{Headers: received, Attempt: 6, Delayed: 1, FirstFailure: first, Now: first.Add(time.Hour), Instance: "m1"}
	want := header.New(
		header.Field{Name: "Colour", Value: "red"},
		header.Field{Name: header.Retries, Value: "2"},
		header.Field{Name: header.RetriesTimestamp, Value: "2026-03-01 13:00:00:000000 Z"},
		header.Field{Name: header.MessageID, Value: "7"},
		header.Field{Name: header.DeliverAt, Value: "2026-03-01 13:01:00:000000 Z"},
		header.Field{Name: header.HoldfastFirstFailure, Value: "2026-03-01 12:00:00:000000 Z"},
		header.Field{Name: header.HoldfastHistory, Value: `[{"t":"2026-03-01T13:00:00Z","n":6,"d":1,"c":"timeout","e":"late","i":"m1"}]`},
	)
	fault := headers(header.ExceptionMessage, "late", header.HoldfastFaultClass, "timeout")
	if diff := cmp.Diff(text(want), text(DelayHeaders(f, fault, time.Minute))); diff != "" {
		t.Error(diff)
	}
	unchanged := headers("Colour", "red", header.Retries, "1", header.RetriesTimestamp, "old", header.MessageID, "7")
	if diff := cmp.Diff(text(unchanged), text(received)); diff != "" {
		t.Error("the source headers changed:", diff)
	}
}

// text is the headers in order.
func text(h header.Map) string { return string(h.AppendJSON(nil)) }

func TestDelayHeadersOfAMessageWithoutAny(t *testing.T) {
	h := DelayHeaders(recoverability.Failure{FirstFailure: first, Now: first}, header.Map{}, time.Minute)
	if DelayedRetries(h) != 1 || !FirstFailure(h, first.Add(time.Hour)).Equal(first) || h.Len() != 5 {
		t.Errorf("headers %s", text(h))
	}
	for name := range h.All() {
		if strings.Contains(name, "Exception") || name == header.FailedQ {
			t.Errorf("a delayed copy carries the fault header %s", name)
		}
	}
}

func TestErrorHeadersStartTheMessageAfresh(t *testing.T) {
	received := headers(
		"Colour", "red",
		header.Retries, "3", header.RetriesTimestamp, "2026-03-01 12:00:00:000000 Z",
		header.FirstLevelRetries, "5", header.HoldfastFirstFailure, "2026-03-01 11:00:00:000000 Z",
		header.HoldfastHistory, "[]",
		header.MessageID, "7",
	)
	before := text(received)
	got := ErrorHeaders(received, headers(header.FailedQ, "billing", header.ExceptionMessage, "broken"))
	want := headers("Colour", "red", header.MessageID, "7", header.FailedQ, "billing", header.ExceptionMessage, "broken")
	if diff := cmp.Diff(text(want), text(got)); diff != "" {
		t.Error(diff)
	}
	if text(received) != before {
		t.Errorf("the source headers changed: %s", text(received))
	}
	if now := first.Add(72 * time.Hour); DelayedRetries(got) != 0 || !FirstFailure(got, now).Equal(now) {
		t.Error("a message returned from the error queue does not start afresh")
	}
}

func TestErrorHeadersForgetAnEarlierFault(t *testing.T) {
	inexact := recoverability.Failure{Err: &cardError{io.EOF}, Queue: "old", Attempt: 1, FirstFailure: first, Now: first}
	returned := ErrorHeaders(headers("Colour", "red", header.ExceptionData+"Handler type", "Old"), Headers(inexact, host, Frame{}))
	now := recoverability.Failure{Err: errBroken, Queue: "new", Attempt: 2, AttemptExact: true, FirstFailure: first, Now: first}
	fault := Headers(now, host, Frame{})
	want := fields(fault)
	want["Colour"] = "red"
	if diff := cmp.Diff(want, fields(ErrorHeaders(returned, fault))); diff != "" {
		t.Error(diff)
	}
}

// A dead letter with the failure of its sender keeps that failure, and has the broker's reason
// beside it.
func TestDeadLettersKeepTheFailureOfTheirSender(t *testing.T) {
	dead := recoverability.Failure{Err: errBroken, Queue: "in", Attempt: 1, FirstFailure: first, Now: first}
	ours := Headers(dead, host, Frame{})
	unfailed := headers("Colour", "red", header.FailedQ, "old", header.ProcessingMachine, "m0")
	if diff := cmp.Diff(fields(ours), fields(DeadLetterHeaders(unfailed, ours))); diff != "" {
		t.Error("without an exception:", diff)
	}
	theirs := headers("Colour", "red", header.FailedQ, "their-queue", header.TimeOfFailure, "2026-01-01 12:00:00:000000 Z",
		header.ExceptionType, "System.TimeoutException", header.ExceptionMessage, "too late", header.ExceptionData+"k", "v",
		header.ProcessingMachine, "m0", "Holdfast.Fault.Class", "old")
	want := fields(ours)
	for _, name := range []string{header.InnerExceptionType, header.ExceptionStackTrace, header.ExceptionSource} {
		delete(want, name)
	}
	for name, value := range theirs.All() {
		if name != "Colour" && name != "Holdfast.Fault.Class" {
			want[name] = value
		}
	}
	want[header.HoldfastFaultDeadLettered] = ours.Get(header.ExceptionMessage)
	if diff := cmp.Diff(want, fields(DeadLetterHeaders(theirs, ours))); diff != "" {
		t.Error(diff)
	}
}

func TestErrorHeadersOfNothing(t *testing.T) {
	if h := ErrorHeaders(header.Map{}, header.Map{}); h.Len() != 0 {
		t.Errorf("headers %s, want none", text(h))
	}
}

func TestDelayedRetriesOfAnyHeader(t *testing.T) {
	for value, want := range map[string]int{
		"": 0, "0": 0, "1": 1, "17": 17, "007": 7, "1048576": 1 << 20,
		"1048577": 0, "99999999999999999999": 0, "-1": 0, "1.5": 0, " 1": 0, "1 ": 0, "0x1": 0, "one": 0, "１": 0, "\x00": 0,
	} {
		if got := DelayedRetries(headers(header.Retries, value)); got != want {
			t.Errorf("%q: %d, want %d", value, got, want)
		}
	}
	if got := DelayedRetries(header.Map{}); got != 0 {
		t.Errorf("no header: %d, want 0", got)
	}
}

func TestFirstFailureOfAnyHeader(t *testing.T) {
	now := first.Add(time.Hour)
	for value, want := range map[string]time.Time{
		"":                             now,
		"2026-03-01 12:00:00:000000 Z": first,
		"2026-03-01 13:00:00:000000 Z": now,
		"2026-03-01 13:00:00:000001 Z": now, // a clock that is ahead
		"9999-12-31 23:59:59:999999 Z": now,
		"2026-03-01T12:00:00Z":         now,
		"2026-13-41 12:00:00:000000 Z": now,
		"yesterday":                    now,
	} {
		if got := FirstFailure(headers(header.HoldfastFirstFailure, value), now); !got.Equal(want) {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
	if got := FirstFailure(header.Map{}, now); !got.Equal(now) {
		t.Errorf("no header: %v, want now", got)
	}
	// NServiceBus's own timestamp, of the last deferral, says nothing of the first failure.
	if got := FirstFailure(headers(header.RetriesTimestamp, "2026-03-01 12:00:00:000000 Z"), now); !got.Equal(now) {
		t.Errorf("%s alone: %v, want now", header.RetriesTimestamp, got)
	}
}
