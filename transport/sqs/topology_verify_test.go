package sqs_test

import (
	"slices"
	"strings"
	"testing"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

func TestVerifyReportsMissingAndDifferentParts(t *testing.T) {
	broker := brokertest.SQS(t)
	endpoint, typeName := brokertest.Name(t, "billing"), brokertest.Name(t, "Placed")
	own, delay, dead := sanitised(endpoint), sanitised(endpoint)+"-delay.fifo", sanitised(endpoint)+"-dead-letters"
	plan := transport.Plan{
		Delays: true, Types: [][]string{{typeName}},
		Queues: []transport.Queue{{Name: endpoint}, {Name: endpoint + ".error", Shared: true}},
	}
	c := open(t, at(broker, false), endpoint)
	verify := func() (found []string) {
		all, err := c.Verify(t.Context(), plan)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			found = append(found, f.String())
		}
		return found
	}
	missing := func(kind, name string) string {
		return transport.Finding{State: transport.Missing, Kind: kind, Name: name}.String()
	}
	all := []string{
		missing("queue", endpoint+"-dead-letters"), missing("queue", endpoint), missing("queue", endpoint+"-delay.fifo"),
		missing("queue", endpoint+".error"), missing("topic", typeName),
	}
	if diff := cmp.Diff(all, verify()); diff != "" {
		t.Errorf("before Install (-want +got):\n%s", diff)
	}
	install(t, c, plan)
	if found := verify(); found != nil {
		t.Errorf("after Install: %v", found)
	}
	redrive := func(arn, most string) map[string]string {
		return map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"` + arn + `","maxReceiveCount":` + most + `}`}
	}
	for _, test := range []struct {
		queue  string
		set    map[string]string
		detail string
	}{
		{own, redrive(attributes(t, broker, dead)["QueueArn"], "3"), "moves messages to the dead-letter queue after 3 deliveries: set 100"},
		{own, redrive(attributes(t, broker, own)["QueueArn"], "100"), `its dead-letter queue is "` + own + `"`},
		{sanitised(endpoint) + "-error", redrive(attributes(t, broker, dead)["QueueArn"], "3"), "after 3 deliveries, and each listing of it counts as one"},
		{delay, map[string]string{"DelaySeconds": "5"}, "it delays messages by 5 s: set DelaySeconds to 900"},
	} {
		setAttributes(t, broker, test.queue, test.set)
		found := verify()
		if !slices.ContainsFunc(found, func(line string) bool {
			return strings.HasPrefix(line, "differs queue") && strings.Contains(line, test.detail)
		}) {
			t.Errorf("with %v: %q, want %q", test.set, found, test.detail)
		}
	}
}

func TestVerifySubscriptionsReadsThePolicy(t *testing.T) {
	t.Parallel()
	broker := brokertest.SQS(t)
	queue, typeName := brokertest.Name(t, "billing"), brokertest.Name(t, "Placed")
	c := open(t, at(broker, false), "")
	find := func() []transport.Finding {
		found, err := c.VerifySubscriptions(t.Context(), queue, []string{typeName})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := find(); len(found) != 1 || found[0].State != transport.Missing {
		t.Errorf("without the queue: %v", found)
	}
	install(t, c, transport.Plan{Queues: []transport.Queue{{Name: queue}}})
	if err := c.Subscribe(t.Context(), queue, []string{typeName}); err != nil {
		t.Fatal(err)
	}
	if found := find(); len(found) != 0 {
		t.Errorf("after Subscribe: %v", found)
	}
	setAttributes(t, broker, sanitised(queue), map[string]string{"Policy": ""})
	if found := find(); len(found) != 1 || found[0].State != transport.Differs {
		t.Errorf("without a policy: %v", found)
	}
}

func setAttributes(t *testing.T, broker, name string, set map[string]string) {
	t.Helper()
	c := client(broker)
	found, err := c.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		t.Fatal(err)
	}
	in := &awssqs.SetQueueAttributesInput{QueueUrl: found.QueueUrl, Attributes: set}
	if _, err := c.SetQueueAttributes(t.Context(), in); err != nil {
		t.Fatal(err)
	}
}
