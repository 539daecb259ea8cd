package sqs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

type ping struct {
	Text string
	N    int
}

// send sends a recorded message to a queue.
func (n *netEndpoint) send(queue string, r recording) {
	n.Helper()
	in := &awssqs.SendMessageInput{
		QueueUrl: n.url(queue), MessageBody: &r.Body, MessageAttributes: map[string]types.MessageAttributeValue{},
	}
	for name, value := range r.attributes() {
		in.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
	}
	if strings.HasSuffix(queue, ".fifo") {
		id := aws.String(r.MessageAttributes[header.MessageID].StringValue)
		in.MessageGroupId, in.MessageDeduplicationId = id, id
		in.MessageAttributes["NServiceBus.AmazonSQS.DelaySeconds"] = types.MessageAttributeValue{
			DataType: aws.String("String"), StringValue: aws.String("1"),
		}
	}
	_, err := n.queues.SendMessage(n.Context(), in)
	n.must(err)
}

// hideFor sets how long messages wait in the queue for long delays: 15 minutes, and no time in
// tests.
func (n *netEndpoint) hideFor(seconds string) {
	n.Helper()
	_, err := n.queues.SetQueueAttributes(n.Context(), &awssqs.SetQueueAttributesInput{
		QueueUrl: n.url(n.name + "-delay.fifo"), Attributes: map[string]string{"DelaySeconds": seconds},
	})
	n.must(err)
}

// hop forwards a message of the queue for long delays as NServiceBus does when the message is due.
func (n *netEndpoint) hop() {
	n.Helper()
	const delay = "NServiceBus.AmazonSQS.DelaySeconds"
	out, err := n.queues.ReceiveMessage(n.Context(), &awssqs.ReceiveMessageInput{
		QueueUrl: n.url(n.name + "-delay.fifo"), WaitTimeSeconds: 10, MessageAttributeNames: []string{"All"},
	})
	n.must(err)
	for _, m := range out.Messages {
		if left := *m.MessageAttributes[delay].StringValue; left != "1200" {
			n.Errorf("the delay is %s s, want 1200", left)
		}
		delete(m.MessageAttributes, delay)
		_, err := n.queues.SendMessage(n.Context(), &awssqs.SendMessageInput{
			QueueUrl: n.url(n.name), MessageBody: m.Body, MessageAttributes: m.MessageAttributes,
		})
		n.must(err)
	}
}

// netPeer is the Go endpoint with the name of a .NET endpoint.
func (s *system) netPeer(h handled, tr *sqs.Transport) endpoint.Config {
	return endpoint.Config{
		Name: "Net.Peer", Transport: tr, AuditQueue: "audit",
		Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None},
		Messages: []endpoint.Message{
			endpoint.Command[ping]("Interop.Ping"), endpoint.Event[netHappened](netName, baseName),
			endpoint.Event[iHappened](baseName),
		},
		Handlers: []endpoint.Handler{
			handle(h, func(m netHappened) string { return m.Text }),
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m ping) error {
				h <- m.Text
				if m.Text == "poison" {
					return fmt.Errorf("no such order: %s", m.Text)
				}
				return nil
			}),
		},
	}
}

// A Go endpoint gets the queue of a .NET endpoint with its waiting and delayed messages, and its
// subscriptions.
func TestAQueueOfNServiceBusIsTakenOver(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	net := newNet(t, s.broker, s.prefix, s.prefix+"Net-Peer")
	net.install()
	net.subscribe(netName, baseName)
	net.hideFor("0")
	var want []string
	for _, form := range []string{"wrapped", "DoNotWrap"} {
		net.send(net.name, recorded(t, "command", form))
		net.send(net.name+"-delay.fifo", recorded(t, "command with an id, headers and a reply address of its own", form))
		net.publish(netName, recorded(t, "event with a base", form))
		want = append(want, "from .NET", "net→go 0 ü")
	}
	want = append(want, "own id and headers") // in one form: the second has the same deduplication id
	policy := attributes(t, s.broker, net.name)["Policy"]

	h := newHandled()
	tr := s.transport(sqs.ConcreteTopic)
	tr.ShortDelays = false
	s.run(s.netPeer(h, tr))
	for _, form := range []string{"wrapped", "DoNotWrap"} { // by the subscription that NServiceBus made
		net.publish(netName, recorded(t, "event with a base", form))
		want = append(want, "from .NET")
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, h.await(len(want))); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
	got := attributes(t, s.broker, net.name)
	if got["Policy"] != policy || got["RedrivePolicy"] != "" || got["MessageRetentionPeriod"] != "345600" {
		t.Errorf("the queue was changed: %v", got)
	}
}

// Both sides receive from one queue at the same time: each message is received by one of them.
func TestNServiceBusReceivesBesideUsFromOneQueue(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	net := newNet(t, s.broker, s.prefix, s.prefix+"Net-Peer")
	net.install()
	h := make(handled) // two handlers wait until the test receives from h
	cfg := s.netPeer(h, s.transport(sqs.ConcreteTopic))
	cfg.Concurrency = 2
	s.run(cfg)
	want := make([]string, 100)
	ops := make([]transport.Operation, len(want))
	for i := range want {
		want[i] = fmt.Sprintf("%03d", i)
		ops[i] = transport.Operation{Queue: "Net.Peer", Message: &transport.Message{
			ID: want[i], Body: []byte(`{"Text":"` + want[i] + `"}`), Headers: header.New(
				header.Field{Name: header.MessageID, Value: want[i]}, header.Field{Name: header.EnclosedMessageTypes, Value: "Interop.Ping"}),
		}}
	}
	send(t, open(t, s.transport(sqs.ConcreteTopic), ""), ops...)
	ours := []string{<-h}
	var theirs []string
	for _, m := range net.receiveOnce() {
		theirs = append(theirs, m.Headers[header.MessageID])
	}
	if len(theirs) == 0 {
		t.Error("NServiceBus received nothing")
	}
	ours = append(ours, h.await(len(want)-len(theirs)-1)...)
	got := slices.Sorted(slices.Values(slices.Concat(ours, theirs)))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%d received by NServiceBus (-want +got):\n%s", len(theirs), diff)
	}
}

// Verify names what a queue of NServiceBus lacks, which is the dead-letter queue alone. Without one
// nothing is found.
func TestVerifyFindsNoDeadLetterQueueOfNServiceBus(t *testing.T) {
	s := newSystem(t)
	net := newNet(t, s.broker, s.prefix, s.prefix+"Net-Peer")
	net.install()
	for limit, want := range map[int]string{
		0: `[differs queue "Net.Peer": it has no dead-letter queue: set its redrive policy to "Net.Peer-dead-letters" and ` +
			`maxReceiveCount 100, or set Transport.ReceiveLimit to None]`,
		sqs.None: "[]",
	} {
		tr := s.transport(sqs.ConcreteTopic)
		tr.ShortDelays, tr.ReceiveLimit = false, limit
		c := open(t, tr, "Net.Peer")
		plan := transport.Plan{Delays: true, Queues: []transport.Queue{{Name: "Net.Peer"}, {Name: "Net.Peer.quarantine", Counted: true}}}
		install(t, c, plan)
		found, err := c.Verify(t.Context(), plan)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(found); got != want {
			t.Errorf("limit %d: found %s, want %s", limit, got, want)
		}
		if err := c.Remove(t.Context(), "Net.Peer.quarantine"); err != nil {
			t.Fatal(err)
		}
	}
}

// A .NET endpoint gets the queue of a Go endpoint: its installers accept the queues, and it reads
// what waits there.
func TestAQueueOfOursIsTakenOverByNServiceBus(t *testing.T) {
	t.Parallel()
	for _, raw := range []bool{false, true} {
		t.Run(fmt.Sprint("raw ", raw), func(t *testing.T) {
			s := newSystem(t)
			tr := s.transport(sqs.ConcreteTopic)
			tr.ShortDelays, tr.RawBody = false, raw
			_, stop := s.run(s.netPeer(newHandled(), tr))
			stop()
			own := open(t, tr, "")
			ops := []transport.Operation{}
			bodies := map[string]string{"text": `{"Text":"grüße\n","N":1}`, "binary": "\x00\xff\x01 and more", "none": ""}
			for _, id := range []string{"text", "binary", "none"} {
				ops = append(ops, transport.Operation{Queue: "Net.Peer", Message: &transport.Message{
					ID: id, Body: []byte(bodies[id]), Headers: header.New(
						header.Field{Name: header.MessageID, Value: id}, header.Field{Name: header.EnclosedMessageTypes, Value: "Interop.Ping"},
						header.Field{Name: "Custom", Value: "ü \"quoted\"\r\n"}),
				}})
			}
			later := ops[0]
			later.After = 20 * time.Minute
			net := newNet(t, s.broker, s.prefix, s.prefix+"Net-Peer")
			net.hideFor("0")
			send(t, own, append(ops, later)...)

			net.hideFor("900")
			net.install()
			net.subscribe(netName)
			net.hop()
			var ids []string
			for _, m := range net.receive() {
				id := m.Headers[header.MessageID]
				if m.body() != bodies[id] || m.Headers["Custom"] != "ü \"quoted\"\r\n" {
					t.Errorf("%s: NServiceBus reads body %q and headers %v", id, m.body(), m.Headers)
				}
				ids = append(ids, id)
			}
			slices.Sort(ids)
			if diff := cmp.Diff([]string{"binary", "none", "text", "text"}, ids); diff != "" {
				t.Errorf("received (-want +got):\n%s", diff)
			}
		})
	}
}

// ServiceControl reads the error and audit queues as an endpoint of NServiceBus does.
func TestServiceControlReadsOurErrorAndAuditQueues(t *testing.T) {
	t.Parallel()
	for _, raw := range []bool{false, true} {
		t.Run(fmt.Sprint("raw ", raw), func(t *testing.T) {
			s := newSystem(t)
			h := newHandled()
			tr := s.transport(sqs.ConcreteTopic)
			tr.RawBody = raw
			e, stop := s.run(s.netPeer(h, tr))
			for _, text := range []string{"fine", "poison"} {
				if err := e.Send(t.Context(), ping{Text: text}, endpoint.To("Net.Peer")); err != nil {
					t.Fatal(err)
				}
			}
			h.await(2)
			stop()
			for queue, required := range map[string][]string{
				"error": {
					header.FailedQ, header.TimeOfFailure, header.ExceptionType, header.ExceptionMessage, header.ExceptionStackTrace,
				},
				"audit": {header.ProcessingStarted, header.ProcessingEnded},
			} {
				control := newNet(t, s.broker, s.prefix, s.prefix+queue)
				control.install()
				ms := control.receive()
				if len(ms) != 1 {
					t.Fatalf("%s: %d messages, want 1", queue, len(ms))
				}
				checkImported(t, queue, ms[0], required)
				if failed := ms[0].Headers[header.FailedQ]; queue == "error" && failed != s.prefix+"Net-Peer" {
					t.Errorf("ServiceControl would return the message to %q", failed)
				}
			}
		})
	}
}

var timeForm = regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{6} Z$`)

// checkImported checks what ServiceControl needs of a message of the error or audit queue.
func checkImported(t *testing.T, queue string, m netMessage, required []string) {
	t.Helper()
	for _, name := range append([]string{
		header.MessageID, header.ProcessingEndpoint, header.EnclosedMessageTypes, header.TimeSent, header.HostID,
	}, required...) {
		value := m.Headers[name]
		if value == "" {
			t.Errorf("%s: header %s is missing", queue, name)
		}
		isTime := name == header.TimeSent || name == header.TimeOfFailure || strings.HasPrefix(name, "NServiceBus.Processing") &&
			name != header.ProcessingEndpoint
		if isTime && !timeForm.MatchString(value) {
			t.Errorf("%s: header %s is %q", queue, name, value)
		}
	}
	var p ping
	if err := json.Unmarshal([]byte(m.body()), &p); err != nil || p.Text == "" {
		t.Errorf("%s: body %q: %v", queue, m.body(), err)
	}
}
