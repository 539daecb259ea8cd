package asb_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// later returns an operation with a delay and a receipt: it is scheduled by a request on
// $management.
func later(queue, id string, after time.Duration) transport.Operation {
	op := to(queue, id)
	op.After, op.Receipt = after, true
	return op
}

func TestARefusedScheduleIsARefusal(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in", "q400", "q403", "q404", "q413", "q500")
	dispatch(t, c, later("in", "first", time.Hour))
	connections := ns.Control.State().Counts.Connections
	for _, tt := range []struct {
		status int
		want   error // nil: a refusal of the message
	}{
		{400, nil}, {403, nil}, {404, transport.ErrNoQueue}, {413, transport.ErrTooLarge}, {500, transport.ErrUnreachable},
	} {
		ns.Control.Set(brokertest.ServiceBusFaults{Management: brokertest.ServiceBusRefusal{Status: tt.status, Operation: "schedule-message"}})
		_, err := c.Dispatch(within(t), []transport.Operation{later(fmt.Sprint("q", tt.status), "m", time.Hour)})
		switch {
		case err == nil, errors.Is(err, transport.ErrOutcomeUnknown):
			t.Errorf("status %d: %v, want an answer", tt.status, err)
		case tt.want == nil && errors.Is(err, transport.ErrUnreachable), tt.want != nil && !errors.Is(err, tt.want):
			t.Errorf("status %d: %v, want %v", tt.status, err, tt.want)
		}
	}
	ns.Control.Set(brokertest.ServiceBusFaults{})
	dispatch(t, c, later("in", "last", time.Hour))
	if got := ns.Control.State(); got.Counts.Connections != connections || got.Queues["in"].Scheduled != 2 {
		t.Errorf("%d connections more, %d messages scheduled, want 2", got.Counts.Connections-connections, got.Queues["in"].Scheduled)
	}
}

// The client library takes conditions that it does not know for the end of the connection.
func TestARefusedSendIsARefusal(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	ns.Control.Set(brokertest.ServiceBusFaults{Sends: brokertest.ServiceBusRefusal{Status: 400, Times: 1}})
	_, err := c.Dispatch(within(t), []transport.Operation{to("in", "m")})
	if err == nil || errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("%v, want a refusal", err)
	}
	dispatch(t, c, to("in", "after"))
}

func TestAThrottledScheduleIsRepeated(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 503} {
		ns := brokertest.OwnServiceBus(t)
		c := open(t, on(ns))
		install(t, c, "in")
		ns.Control.Set(brokertest.ServiceBusFaults{Management: brokertest.ServiceBusRefusal{Status: status, Times: 1}})
		receipts := dispatch(t, c, later("in", "m", time.Hour))
		if got := ns.Control.State().Queues["in"].Scheduled; got != 1 || receipts[0].Cancel == "" {
			t.Errorf("status %d: %d scheduled, receipts %v", status, got, receipts)
		}
	}
}

func TestDelaysWithoutAReceiptShareARequest(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	dispatch(t, c, to("in", "first"))
	before := ns.Control.State().Counts
	var ops []transport.Operation
	for i := range 100 {
		op := to("in", fmt.Sprint("m-", i))
		op.After = time.Hour + time.Duration(i)*time.Second
		ops = append(ops, op)
	}
	if receipts := dispatch(t, c, ops...); receipts != nil {
		t.Errorf("receipts that were not asked for: %v", receipts[:3])
	}
	state := ns.Control.State()
	if state.Counts.Sends-before.Sends > 2 || state.Counts.Management != before.Management || state.Queues["in"].Scheduled != 100 {
		t.Errorf("%d sends, %d requests on $management, %d messages scheduled", state.Counts.Sends-before.Sends, state.Counts.Management-before.Management, state.Queues["in"].Scheduled)
	}
}

// Requests to schedule messages of more than 1 MiB time out at the service.
func TestALargeDelayedMessageHasNoReceipt(t *testing.T) {
	ns := brokertest.OwnServiceBusSized(t, 4<<20, 256<<10)
	tr := on(ns)
	tr.MaxMessageSize = 4 << 20
	c := open(t, tr)
	install(t, c, "in")
	op := later("in", "large", time.Hour)
	op.Message.Body = []byte(strings.Repeat("x", 3<<19))
	receipts := dispatch(t, c, op, later("in", "small", time.Hour))
	if receipts[0].Cancel != "" || receipts[1].Cancel == "" {
		t.Errorf("receipts %v", receipts)
	}
	if got := ns.Control.State(); got.Queues["in"].Scheduled != 2 || got.Counts.Management > 2 {
		t.Errorf("%+v", got)
	}
}

func TestReceiptsOfMessagesDueTogetherAreTheirOwn(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	at := time.Now().Add(2 * time.Second)
	var ops []transport.Operation
	for i := range 3 {
		op := to("in", fmt.Sprint("m-", i))
		op.At, op.Receipt = at, true
		ops = append(ops, op)
	}
	receipts := dispatch(t, c, ops...)
	must(t, c.(transport.Canceler).Cancel(within(t), receipts[0].Cancel))
	ids := idsOf(nextN(t, receive(t, c, "in"), 2))
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"m-1", "m-2"}) {
		t.Errorf("%q came, after m-0 was cancelled", ids)
	}
}

func TestARequestSchedulesABoundedNumberOfMessages(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	dispatch(t, c, to("in", "first"))
	before := ns.Control.State().Counts.Management
	at := time.Now().Add(time.Hour)
	var ops []transport.Operation
	for i := range 120 {
		op := to("in", fmt.Sprint("m-", i))
		op.At, op.Receipt = at, true
		ops = append(ops, op)
	}
	receipts := dispatch(t, c, ops...)
	if slices.ContainsFunc(receipts, func(r transport.Receipt) bool { return r.Cancel == "" }) {
		t.Errorf("receipts are missing: %v", receipts)
	}
	if got := ns.Control.State().Counts.Management - before; got != 3 {
		t.Errorf("%d requests for 120 messages, want 3 of at most 50", got)
	}
}

func TestAMessageThatIsRefusedInABatchFailsAlone(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	bad := to("in", "bad")
	// Just below the limit of all headers, in which the service includes the properties.
	for i := range 3 {
		bad.Message.Headers.Set(fmt.Sprint("Large-", i), strings.Repeat("x", 20<<10))
	}
	bad.Message.Headers.Set(header.ReplyToAddress, strings.Repeat("r", 3<<10))
	_, err := c.Dispatch(within(t), []transport.Operation{to("in", "m-1"), bad, to("in", "m-2")})
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Ops) != 1 || failed.Ops[0].Index != 1 {
		t.Errorf("%v, want the second message alone to fail", err)
	}
	if got := idsIn(queued(t, c, "in")); !slices.Equal(got, []string{"m-1", "m-2"}) {
		t.Errorf("%q arrived", got)
	}
}

func TestAMissingQueueIsAskedForOnceASecond(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	before := ns.Control.State().Counts.Claims
	began := time.Now()
	for range 50 {
		if _, err := c.Dispatch(within(t), []transport.Operation{to("missing", "m")}); !errors.Is(err, transport.ErrNoQueue) {
			t.Fatalf("%v, want ErrNoQueue", err)
		}
	}
	most := 1 + int(time.Since(began)/time.Second)
	if got := ns.Control.State().Counts.Claims - before; got > most {
		t.Errorf("50 messages made %d requests, want at most %d", got, most)
	}
	install(t, c, "missing")
	dispatch(t, c, to("missing", "m"))
}

func TestACancelThatIsUnderWayIsNotFound(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	receipts := dispatch(t, c, later("in", "m", time.Hour))
	ns.Control.Set(brokertest.ServiceBusFaults{Management: brokertest.ServiceBusRefusal{Status: 400, Operation: "cancel-scheduled-message", Times: 1, Late: true}})
	canceler := c.(transport.Canceler)
	for range 2 { // the service says "already being cancelled", then that there is no such message
		if err := canceler.Cancel(within(t), receipts[0].Cancel); !errors.Is(err, transport.ErrNotFound) {
			t.Errorf("%v, want ErrNotFound", err)
		}
	}
}

// A publish to a topic that does not exist has no subscribers; a topic that is not found in passing
// has.
func TestATopicThatIsNotFoundInPassingLosesNoEvent(t *testing.T) {
	t.Parallel()
	for what, faults := range map[string]brokertest.ServiceBusFaults{
		"the topic once":             {Links: brokertest.ServiceBusRefusal{Status: 404, Address: "Shop.Placed", Times: 1}},
		"its $management":            {Links: brokertest.ServiceBusRefusal{Status: 404, Address: "Shop.Placed/$management"}},
		"the request to $management": {Management: brokertest.ServiceBusRefusal{Status: 404, Address: "Shop.Placed"}},
	} {
		t.Run(what, func(t *testing.T) {
			ns := brokertest.OwnServiceBus(t)
			c := open(t, on(ns))
			install(t, c, "in")
			subscribe(t, c, "in", "Shop.Placed")
			ns.Control.Set(faults)
			op := transport.Operation{Types: []string{"Shop.Placed"}, Message: message("m", ""), After: 200 * time.Millisecond, Receipt: true}
			_, err := c.Dispatch(within(t), []transport.Operation{op})
			ns.Control.Set(brokertest.ServiceBusFaults{})
			if err != nil {
				if !errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrNoQueue) {
					t.Errorf("%v, want ErrUnreachable", err)
				}
				dispatch(t, c, op)
			}
			must(t, next(t, receive(t, c, "in")).Complete(within(t)))
		})
	}
}

// A disabled topic or queue is not missing: its subscribers exist, and it may be enabled again.
// Nothing that is sent meanwhile is dropped, and the errors say that it is disabled.
func TestWhatIsDisabledIsNotMissing(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
	manage := rawAdmin(t, ns)
	c := open(t, on(ns))
	install(t, c, "in", "other")
	subscribe(t, c, "in", "Shop.Placed")
	event := func(id string, after time.Duration) transport.Operation {
		return transport.Operation{Types: []string{"Shop.Placed"}, Message: message(id, ""), After: after}
	}
	setStatus := func(status admin.EntityStatus) {
		topic, err := manage.GetTopic(within(t), "Shop.Placed", nil)
		must(t, err)
		topic.Status = &status
		_, err = manage.UpdateTopic(within(t), "Shop.Placed", topic.TopicProperties, nil)
		must(t, err)
		queue, err := manage.GetQueue(within(t), "other", nil)
		must(t, err)
		queue.Status = &status
		_, err = manage.UpdateQueue(within(t), "other", queue.QueueProperties, nil)
		must(t, err)
	}
	setStatus(admin.EntityStatusDisabled)
	for what, op := range map[string]transport.Operation{
		"an event": event("e", 0), "a delayed event": event("d", time.Second), "a command": to("other", "c"), "a delayed command": later("other", "l", time.Second),
	} {
		_, err := c.Dispatch(within(t), []transport.Operation{op})
		if !errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrNoQueue) || !strings.Contains(err.Error(), "disabled") {
			t.Errorf("%s: %v, want ErrUnreachable that says disabled", what, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "other"})
	if err == nil {
		_, err = r.Receive(ctx, 1)
	}
	if err == nil || errors.Is(err, transport.ErrNoQueue) || !strings.Contains(err.Error(), "disabled") {
		t.Errorf("receive: %v, want an error that says disabled", err)
	}
	setStatus(admin.EntityStatusActive)
	eventuallySent(t, c, event("later", 0))
	eventuallySent(t, c, to("other", "later"))
	for _, queue := range []string{"in", "other"} {
		if d := next(t, receive(t, c, queue)); d.Message().ID != "later" {
			t.Errorf("%s: %s came", queue, d.Message().ID)
		} else {
			must(t, d.Complete(within(t)))
		}
	}
}

// An event for a topic that the connection has seen is an error when the topic is gone, and one for
// a topic that never existed is dropped. A setting decides otherwise.
func TestAMissingTopicFailsIfItExisted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		missing       asb.MissingTopic
		seen, unknown bool // whether a publish to a topic that is gone, and to one that never existed, fails
	}{
		"zero value": {"", true, false}, "fail": {asb.FailMissingTopic, true, true}, "ignore": {asb.IgnoreMissingTopic, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
			tr := on(ns)
			tr.MissingTopic = test.missing
			c := open(t, tr)
			install(t, c, "in")
			subscribe(t, c, "in", "Shop.Installed")
			dispatch(t, open(t, on(ns)), transport.Operation{Types: []string{"Shop.Installed"}, Message: message("1", "")})
			_, err := rawAdmin(t, ns).DeleteTopic(within(t), "Shop.Installed", nil)
			must(t, err)
			for topic, fails := range map[string]bool{"Shop.Installed": test.seen, "Shop.Never": test.unknown} {
				_, err := c.Dispatch(within(t), []transport.Operation{{Types: []string{topic}, Message: message("2", "")}})
				if fails && (!errors.Is(err, transport.ErrNoQueue) || !strings.Contains(err.Error(), "MissingTopic")) || !fails && err != nil {
					t.Errorf("publish to %s: %v, fails: %v", topic, err, fails)
				}
			}
		})
	}
}
