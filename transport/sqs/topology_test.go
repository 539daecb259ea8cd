package sqs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// fullConn is what a connection offers beside [transport.Conn].
type fullConn interface {
	transport.Conn
	transport.Installer
	transport.Verifier
	transport.SubscriptionVerifier
	transport.Remover
	transport.Subscriber
	transport.Satellites
	transport.Inspector
	transport.Browser
}

// open opens the transport for an endpoint.
func open(t *testing.T, tr *sqs.Transport, endpoint string) fullConn {
	t.Helper()
	c, err := tr.Open(t.Context(), transport.Env{Endpoint: endpoint, Instance: "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	full, ok := c.(fullConn)
	if !ok {
		t.Fatalf("%T lacks an interface", c)
	}
	return full
}

// install creates what an endpoint needs.
func install(t *testing.T, c transport.Installer, plan transport.Plan) {
	t.Helper()
	if err := c.Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
}

func planOf(endpoint string, types ...[]string) transport.Plan {
	return transport.Plan{Delays: true, Types: types, Queues: []transport.Queue{
		{Name: endpoint}, {Name: endpoint + ".quarantine", Counted: true}, {Name: endpoint + ".error", Shared: true},
	}}
}

// attributes are those of a queue as SQS names it.
func attributes(t *testing.T, endpoint, name string) map[string]string {
	t.Helper()
	c := client(endpoint)
	found, err := c.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: found.QueueUrl, AttributeNames: []types.QueueAttributeName{"All"}})
	if err != nil {
		t.Fatal(err)
	}
	return out.Attributes
}

func TestInstallCreatesTheQueuesOfAnEndpoint(t *testing.T) {
	broker := brokertest.SQS(t)
	tr := at(broker, false)
	tr.QueuePrefix = "test-"
	tr.Retention = 7 * 24 * time.Hour
	tr.KMSKey = "alias/orders"
	endpoint := brokertest.Name(t, "Shop.Billing")
	install(t, open(t, tr, endpoint), planOf(endpoint))
	name := "test-" + sanitised(endpoint)

	redrive := func(a map[string]string) (target string, count any) {
		var p map[string]any
		if err := json.Unmarshal([]byte(a["RedrivePolicy"]), &p); err != nil {
			return "", nil
		}
		target, _ = p["deadLetterTargetArn"].(string)
		return target[strings.LastIndex(target, ":")+1:], p["maxReceiveCount"]
	}
	for suffix, want := range map[string]struct{ retention, delay, fifo, target string }{
		"":              {"604800", "0", "", name + "-dead-letters"},
		"-quarantine":   {"604800", "0", "", name + "-dead-letters"},
		"-error":        {"604800", "0", "", ""},
		"-dead-letters": {"1209600", "0", "", ""},
		"-delay.fifo":   {"604800", "900", "true", ""},
	} {
		a := attributes(t, broker, name+suffix)
		target, count := redrive(a)
		if a["MessageRetentionPeriod"] != want.retention || a["DelaySeconds"] != want.delay || a["FifoQueue"] != want.fifo ||
			target != want.target || a["KmsMasterKeyId"] != "alias/orders" {
			t.Errorf("%s%s has %v, want %+v", name, suffix, a, want)
		}
		if target != "" && fmt.Sprint(count) != "100" {
			t.Errorf("%s%s gives up after %v", name, suffix, count)
		}
	}
	for _, suffix := range []string{"-quarantine-delay.fifo", "-error-delay.fifo"} {
		queue := name + suffix
		if _, err := client(broker).GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: &queue}); err == nil {
			t.Errorf("%s has been created", queue)
		}
	}
}

func TestInstallLeavesOutWhatIsNotWanted(t *testing.T) {
	broker := brokertest.SQS(t)
	tr := at(broker, false)
	tr.ReceiveLimit, tr.ShortDelays = sqs.None, true
	endpoint := brokertest.Name(t, "billing")
	c := open(t, tr, endpoint)
	install(t, c, planOf(endpoint))
	if policy := attributes(t, broker, endpoint)["RedrivePolicy"]; policy != "" {
		t.Errorf("there is a redrive policy: %s", policy)
	}
	for _, suffix := range []string{"-delay.fifo", "-dead-letters"} {
		queue := endpoint + suffix
		if _, err := client(broker).GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: &queue}); err == nil {
			t.Errorf("%s has been created", queue)
		}
	}
	if own, err := c.Satellites(t.Context()); err != nil || len(own) != 0 {
		t.Errorf("there are satellites: %v, %v", own, err)
	}
	op := transport.Operation{Queue: endpoint, Message: testMessage("m"), After: time.Hour}
	if _, err := c.Dispatch(t.Context(), []transport.Operation{op}); err == nil {
		t.Error("a delay of an hour is accepted")
	}
}

func TestInstallLeavesAloneWhatExists(t *testing.T) {
	broker := brokertest.SQS(t)
	endpoint := brokertest.Name(t, "billing")
	if _, err := client(broker).CreateQueue(t.Context(), &awssqs.CreateQueueInput{
		QueueName: &endpoint, Attributes: map[string]string{"MessageRetentionPeriod": "60"},
	}); err != nil {
		t.Fatal(err)
	}
	c := open(t, at(broker, false), endpoint)
	install(t, c, planOf(endpoint))
	if a := attributes(t, broker, endpoint); a["MessageRetentionPeriod"] != "60" || a["RedrivePolicy"] != "" {
		t.Errorf("the queue was changed: %v", a)
	}
}

// Install refuses a name that is too long for the queues of the endpoint.
func TestInstallRefusesANameTooLongForItsQueues(t *testing.T) {
	broker := brokertest.SQS(t)
	for _, test := range []struct {
		letters int
		advice  string
	}{
		{81, "has 81 characters, and AWS takes 80"},
		{75, "-dead-letters"},
		{70, ""}, // with the prefix below it fits nowhere
	} {
		tr := at(broker, false)
		endpoint := strings.Repeat("x", test.letters)
		if test.letters == 70 {
			tr.ReceiveLimit = sqs.None
			test.advice = "ShortDelays"
		}
		err := open(t, tr, "").Install(t.Context(), transport.Plan{Delays: true, Queues: []transport.Queue{{Name: endpoint}}})
		if test.letters == 75 {
			err = open(t, tr, endpoint).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: endpoint}}})
		}
		if err == nil || !strings.Contains(err.Error(), test.advice) {
			t.Errorf("%d letters: %v, want %q", test.letters, err, test.advice)
		}
	}
	err := open(t, at(broker, false), "").Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "orders.fifo"}}})
	if err == nil || !strings.Contains(err.Error(), "FIFO queues cannot be received from") {
		t.Errorf("a FIFO queue: %v", err)
	}
}

func TestInstallersAtTheSameTimeDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	broker := brokertest.SQS(t)
	endpoint := brokertest.Name(t, "billing")
	typeName := brokertest.Name(t, "Placed")
	var all sync.WaitGroup
	for range 8 {
		c := open(t, at(broker, false), endpoint)
		all.Go(func() {
			if err := c.Install(t.Context(), planOf(endpoint, []string{typeName})); err != nil {
				t.Error(err)
			}
			if err := c.Subscribe(t.Context(), endpoint, []string{typeName}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	c := open(t, at(broker, false), endpoint)
	send(t, c, transport.Operation{Types: []string{typeName}, Message: testMessage("m")})
	if got := receiveAll(t, c, endpoint, 1); !slices.Equal(got, []string{"m"}) {
		t.Errorf("received %v", got)
	}
}

// SNS sends to a queue only when its policy says so; the stand-in does not ask.
func TestAQueueLetsInTheTopicsThatItSubscribesTo(t *testing.T) {
	t.Parallel()
	broker := brokertest.SQS(t)
	endpoint := brokertest.Name(t, "billing")
	c := open(t, at(broker, false), endpoint)
	install(t, c, planOf(endpoint))
	types := []string{brokertest.Name(t, "Shop.Placed"), brokertest.Name(t, "Shop.Paid")}
	for _, subscribed := range [][]string{types[:1], types} {
		if err := c.Subscribe(t.Context(), endpoint, subscribed); err != nil {
			t.Fatal(err)
		}
	}
	var policy struct {
		Statement []struct {
			Effect, Sid string
			Principal   map[string]string
			Action      []string
			Resource    []string
			Condition   map[string]map[string][]string
		}
	}
	a := attributes(t, broker, endpoint)
	if err := json.Unmarshal([]byte(a["Policy"]), &policy); err != nil {
		t.Fatalf("policy %q: %v", a["Policy"], err)
	}
	if len(policy.Statement) != 1 {
		t.Fatalf("the policy has %d statements: %s", len(policy.Statement), a["Policy"])
	}
	s := policy.Statement[0]
	if s.Effect != "Allow" || s.Principal["Service"] != "sns.amazonaws.com" || !slices.Equal(s.Action, []string{"sqs:SendMessage"}) ||
		!slices.Equal(s.Resource, []string{a["QueueArn"]}) {
		t.Errorf("the statement is %+v", s)
	}
	var topics []string
	for _, arn := range s.Condition["ArnLike"]["aws:SourceArn"] {
		topics = append(topics, arn[strings.LastIndex(arn, ":")+1:])
	}
	want := slices.Sorted(slices.Values([]string{sanitised(types[0]), sanitised(types[1])}))
	if !slices.Equal(topics, want) {
		t.Errorf("the topics %v are let in, want %v", topics, want)
	}
}

func TestAMissingTopic(t *testing.T) {
	t.Parallel()
	broker := brokertest.SQS(t)
	for missing, check := range map[sqs.MissingTopic]func(t *testing.T, c fullConn, typeName string, err error){
		"": func(t *testing.T, _ fullConn, _ string, err error) {
			if !errors.Is(err, transport.ErrNoQueue) || !strings.Contains(err.Error(), "MissingTopic") {
				t.Errorf("the error is %v", err)
			}
		},
		sqs.IgnoreMissingTopic: func(t *testing.T, _ fullConn, _ string, err error) {
			if err != nil {
				t.Errorf("the error is %v", err)
			}
		},
		sqs.CreateMissingTopic: func(t *testing.T, c fullConn, typeName string, err error) {
			if err != nil {
				t.Errorf("the error is %v", err)
			}
			other := open(t, at(broker, false), "")
			send(t, other, transport.Operation{Types: []string{typeName}, Message: testMessage("m")})
		},
	} {
		t.Run(string(missing), func(t *testing.T) {
			tr := at(broker, false)
			tr.MissingTopic = missing
			c := open(t, tr, "")
			typeName := brokertest.Name(t, "Placed")
			queue := brokertest.Name(t, "billing")
			install(t, c, transport.Plan{Queues: []transport.Queue{{Name: queue}}})
			_, err := c.Dispatch(t.Context(), []transport.Operation{
				{Types: []string{typeName}, Message: testMessage("p")},
				{Queue: queue, Message: testMessage("m")},
			})
			check(t, c, typeName, err)
			if got := receiveAll(t, c, queue, 1); !slices.Equal(got, []string{"m"}) {
				t.Errorf("received %v: a missing topic fails its neighbours", got)
			}
		})
	}
}

// The publisher sends a copy to the topic of each type; who subscribed to a base type knows nothing
// of those derived from it.
func TestAPublisherFansOutAlongTheTypes(t *testing.T) {
	t.Parallel()
	broker := brokertest.SQS(t)
	concrete, base := brokertest.Name(t, "OrderPlaced"), brokertest.Name(t, "Event")
	c := open(t, at(broker, false), "")
	install(t, c, transport.Plan{Types: [][]string{{concrete, base}}})
	queues := map[string][]string{"concrete": {concrete}, "base": {base}, "both": {concrete, base}}
	for name, types := range queues {
		install(t, c, transport.Plan{Queues: []transport.Queue{{Name: brokertest.Name(t, name)}}})
		queue := brokertest.Name(t, name)
		install(t, c, transport.Plan{Queues: []transport.Queue{{Name: queue}}})
		if err := c.Subscribe(t.Context(), queue, types); err != nil {
			t.Fatal(err)
		}
		queues[name] = []string{queue}
	}
	m := testMessage("m")
	m.Headers.Set(header.EnclosedMessageTypes, concrete+";"+base)
	send(t, c, transport.Operation{Types: []string{concrete, base}, Message: m})
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		if got := receiveAll(t, c, queues[name][0], 1); !slices.Equal(got, []string{"m"}) {
			t.Errorf("who subscribed to %s received %v", name, got)
		}
	}
}

func testMessage(id string) *transport.Message {
	return &transport.Message{
		ID: id, Body: []byte("body of " + id),
		Headers: header.New(header.Field{Name: header.MessageID, Value: id}, header.Field{Name: "Of", Value: id}),
	}
}

func send(t *testing.T, c transport.Conn, ops ...transport.Operation) {
	t.Helper()
	if _, err := c.Dispatch(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
}

// receiveAll receives n messages, and then as many as come in a while, and returns their ids.
func receiveAll(t *testing.T, c transport.Conn, queue string, n int) (ids []string) {
	t.Helper()
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	wait := patience
	if n == 0 {
		wait = 300 * time.Millisecond
	}
	for {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		ds, err := r.Receive(ctx, 10)
		cancel()
		if err != nil {
			if len(ids) < n {
				t.Errorf("received %d of %d messages: %v", len(ids), n, err)
			}
			return ids
		}
		for _, d := range ds {
			ids = append(ids, d.Message().ID)
			if err := d.Complete(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if len(ids) >= n {
			wait = 300 * time.Millisecond
		}
	}
}

// At SQS the names sales.quarantine and sales-quarantine are one.
func TestInstallRefusesOneNameForTwoPurposes(t *testing.T) {
	c := open(t, at(brokertest.SQS(t), false), "sales")
	for _, test := range []struct {
		other transport.Queue
		want  string
	}{
		{transport.Queue{Name: "sales-quarantine"}, "are both"},
		{transport.Queue{Name: "sales", Shared: true}, "are both"},
		{transport.Queue{Name: "sales.dead-letters", Shared: true}, "dead-letter queue"},
	} {
		plan := transport.Plan{Queues: []transport.Queue{{Name: "sales"}, {Name: "sales.quarantine", Counted: true}, test.other}}
		err := c.(transport.Installer).Install(t.Context(), plan)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("queue %q: %v, want %q", test.other.Name, err, test.want)
		}
	}
}
