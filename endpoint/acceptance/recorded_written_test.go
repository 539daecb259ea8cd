package acceptance_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// The intended differences between a message of ours and its counterpart of NServiceBus, by header
// or prefix of headers, with their reason.
var (
	onlyTheirs = map[string]string{
		header.Version:          "there is no version of NServiceBus to name, and no reader needs one",
		header.RetriesTimestamp: "a message that is returned starts with all its delayed retries",
		header.ExceptionData:    "Go's errors have no table of data",
	}
	onlyOurs = map[string]string{
		"Holdfast.Fault.": "the class of the error, the attempts and the history, which NServiceBus does not read",
	}
	otherValue = map[string]string{
		header.EnclosedMessageTypes: "names of types have no assembly",
		header.ExceptionType:        "a type of Go",
		header.ExceptionMessage:     "the text of another error",
		header.ExceptionSource:      "a module in place of an assembly",
		header.ExceptionStackTrace:  "frames of Go: compared by their form",
	}
)

// What the Go endpoint sends for a recorded message of .NET is compared, header by header, with
// what the .NET endpoint sent for a message of Go's: the reply, the copy in the error queue, the
// audit copy.
func TestMessagesForNET(t *testing.T) {
	onBrokers(t, []string{"rabbitmq", "rabbitmq-xml", "postgresql", "sqs"}, []string{"rabbitmq-newtonsoft"}, func(t *testing.T, name string) {
		on := landscapes[name](t)
		sent := on.answer(t)
		for _, m := range sent.replies {
			on.sameHeaders(t, "reply to a command of Go's", nil, m)
		}
		for _, m := range sent.failed {
			on.sameHeaders(t, "failure of a .NET handler, in the error queue", sent.received, m)
			on.sameStack(t, m)
		}
		for _, m := range sent.audited {
			on.sameHeaders(t, "audit copy of a command of Go's", sent.received, m)
		}
	})
}

// answers are the messages that the Go endpoint sends.
type answers struct {
	received                 map[string]*recorded // by key
	replies, failed, audited []*transport.Message
}

var errPoison = errors.New("go poison: from .NET")

// answer has the recorded commands handled, with one delayed retry, and returns all messages of the
// Go endpoint.
func (on *landscape) answer(t *testing.T) *answers {
	t.Helper()
	on.install(t, on.net)
	cfg := on.config(
		endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m netPing) error {
			return s.Reply(ctx, netPong{"re: " + m.Text})
		}),
		endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m netAsk) error { return s.Reply(ctx, netAnswer(m)) }),
		endpoint.Handle(func(context.Context, *endpoint.Session, netPoison) error { return errPoison }),
	)
	cfg.Recoverability.Delayed, cfg.Recoverability.Delays = 1, recoverability.Delays{Delay: time.Second}
	run := start(t, cfg)
	a := &answers{received: map[string]*recorded{}}
	replies, failed := 0, 0
	for _, m := range recordings(t, on.file) {
		if m.Queue != on.own {
			continue
		}
		switch m.What {
		default:
			continue
		case "command (fails)":
			failed++
		case "command", "command of a saga: its reply has to name the saga":
			replies++
		}
		on.put(t, &m, on.own)
		a.received[key(m.ID, m.Headers)] = &m
	}
	a.replies, a.failed, a.audited = on.take(t, on.net, replies), on.take(t, "error", failed), on.take(t, "audit", replies)
	run.end()
	on.sameReplies(t, a)
	return a
}

// sameReplies compares what a reply takes from its request.
func (on *landscape) sameReplies(t *testing.T, a *answers) {
	t.Helper()
	for _, m := range a.replies {
		h := maps.Collect(m.Headers.All())
		var request *recorded
		for _, r := range a.received {
			if r.ID == h[header.RelatedTo] && r.Headers[header.ConversationID] == h[header.ConversationID] {
				request = r
			}
		}
		if request == nil {
			t.Errorf("a reply is related to %q", h[header.RelatedTo])
			continue
		}
		if h[header.CorrelationID] != request.Headers[header.CorrelationID] ||
			h[header.SagaID] != request.Headers[header.OriginatingSagaID] ||
			h[header.SagaType] != request.Headers[header.OriginatingSagaType] {
			t.Errorf("the reply to %v has %v", request, h)
		}
	}
}

// sameHeaders compares the headers of m with those of the recorded counterpart: with received,
// those that were added to the received message.
func (on *landscape) sameHeaders(t *testing.T, what string, received map[string]*recorded, m *transport.Message) {
	t.Helper()
	theirs, ours := on.counterpart(t, what), maps.Collect(m.Headers.All())
	if received != nil {
		was := received[key(m.ID, ours)]
		if was == nil {
			t.Fatalf("%s: a copy of %q, which was not received", what, m.ID)
		}
		for name, value := range was.Headers {
			if ours[name] != value {
				t.Errorf("%s: header %s of the received message is %q, want %q", what, name, ours[name], value)
			}
			delete(ours, name)
		}
		// Names of headers that Go's endpoint gives to a message that it sends.
		for _, name := range []string{
			header.MessageID, header.CorrelationID, header.ConversationID, header.MessageIntent, header.ReplyToAddress,
			header.OriginatingEndpoint, header.OriginatingMachine, header.OriginatingHostID, header.TimeSent,
			header.ContentType, header.EnclosedMessageTypes,
		} {
			delete(theirs, name)
		}
	}
	for _, saga := range []string{header.SagaID, header.SagaType} { // compared with the request
		delete(ours, saga)
	}
	without(theirs, onlyTheirs)
	without(ours, onlyOurs)
	for name := range otherValue {
		if (theirs[name] == "") != (ours[name] == "") {
			t.Errorf("%s: header %s is %q, theirs %q", what, name, ours[name], theirs[name])
		}
		delete(theirs, name)
		delete(ours, name)
	}
	if diff := cmp.Diff(on.forms(theirs, "Net", "Go"), on.forms(ours, "Go", "Net")); diff != "" {
		t.Errorf("%s: headers (-theirs +ours):\n%s", what, diff)
	}
}

func without(headers, intended map[string]string) {
	maps.DeleteFunc(headers, func(name, _ string) bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(intended)), func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}

// counterpart returns the headers of the recorded message of that kind, or of RabbitMQ's where a
// broker has none.
func (on *landscape) counterpart(t *testing.T, what string) map[string]string {
	t.Helper()
	for _, file := range []string{on.file, "rabbitmq.json"} {
		for _, m := range recordings(t, file) {
			if m.What == what {
				return m.Headers
			}
		}
	}
	t.Fatalf("no %q was recorded", what)
	return nil
}

var shapes = []struct {
	name string
	form *regexp.Regexp
}{
	{"a time", regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{6} Z$`)},
	{"a UUID", regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)},
	{"an id of 32 digits", regexp.MustCompile(`^[0-9a-f]{32}$`)},
}

// forms returns headers with the form of each value in its place: so messages of two runs can be
// compared. self and other begin the names of the endpoint that wrote them and of its neighbour.
func (on *landscape) forms(headers map[string]string, self, other string) map[string]string {
	host, _ := os.Hostname()
	forms := map[string]string{}
	for name, value := range headers {
		switch {
		case value == host || value == "host":
			value = "the machine"
		case name == header.ContentType && on.xml:
			value = "application/json" // that of the recorded counterpart
		}
		value = strings.TrimPrefix(value, on.prefix) // of queues; no endpoint was recorded with one
		for _, shape := range shapes {
			if shape.form.MatchString(value) {
				value = shape.name
			}
		}
		for _, dot := range []string{"-", ".", ""} {
			value = strings.ReplaceAll(value, self+dot+"Peer", "<self>")
			value = strings.ReplaceAll(value, other+dot+"Peer", "<other>")
		}
		forms[name] = value
	}
	return forms
}

// sameStack compares the form of the stack: the type and the text, and then a frame.
func (on *landscape) sameStack(t *testing.T, m *transport.Message) {
	t.Helper()
	h := &m.Headers
	frame := regexp.MustCompile(`^\n +at [^ ]+\(.*\)( in /.+:line \d+)?(\n|$)`)
	begin := h.Get(header.ExceptionType) + ": " + h.Get(header.ExceptionMessage)
	if rest, ok := strings.CutPrefix(h.Get(header.ExceptionStackTrace), begin); !ok || !frame.MatchString(rest) {
		t.Errorf("the stack is %q", h.Get(header.ExceptionStackTrace))
	}
}
