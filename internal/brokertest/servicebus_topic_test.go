package brokertest_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func (b *bus) topic(properties admin.TopicProperties) string {
	b.Helper()
	name := brokertest.Name(b.T, "topic")
	_, err := b.admin.CreateTopic(b.ctx, name, &admin.CreateTopicOptions{Properties: &properties})
	b.must(err)
	b.Cleanup(func() { _, _ = b.admin.DeleteTopic(b.ctx, name, nil) })
	return name
}

// subscribe creates a subscription that forwards to a queue of its own, and returns the queue.
func (b *bus) subscribe(topic, name string, rule *admin.RuleProperties) string {
	b.Helper()
	q := b.queue(admin.QueueProperties{})
	_, err := b.admin.CreateSubscription(b.ctx, topic, name, &admin.CreateSubscriptionOptions{
		Properties: &admin.SubscriptionProperties{ForwardTo: &q, DefaultRule: rule},
	})
	b.must(err)
	return q
}

// drain receives all messages of a queue.
func (b *bus) drain(queue string) []string {
	b.Helper()
	b.send(queue, text("end"))
	var all []string
	for r := b.receiver(queue); ; {
		m := b.receive(r)
		b.must(r.CompleteMessage(b.ctx, m, nil))
		if string(m.Body) == "end" {
			return all
		}
		all = append(all, string(m.Body))
	}
}

func TestServiceBusCopiesToAllSubscriptions(t *testing.T) {
	b := newBus(t)
	topic := b.topic(admin.TopicProperties{})
	q := b.subscribe(topic, "forwarding", nil)
	_, err := b.admin.CreateSubscription(b.ctx, topic, "plain", nil)
	b.must(err)
	b.send(topic, text("x"))
	b.equal(b.drain(q), []string{"x"})
	r, err := b.client.NewReceiverForSubscription(topic, "plain", nil)
	b.must(err)
	m := b.receive(r)
	b.equal(string(m.Body), "x")
	b.must(r.DeadLetterMessage(b.ctx, m, nil))
	dead, err := b.client.NewReceiverForSubscription(topic, "plain", &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter})
	b.must(err)
	b.equal(string(b.receive(dead).Body), "x")
}

func TestServiceBusFiltersByCorrelation(t *testing.T) {
	for name, filter := range map[string]admin.CorrelationFilter{
		"match":    {Subject: to.Ptr("order"), ApplicationProperties: map[string]any{"n": int64(5), "big": true, "s": "x"}},
		"subject":  {Subject: to.Ptr("other")},
		"number":   {ApplicationProperties: map[string]any{"n": int64(6)}},
		"type":     {ApplicationProperties: map[string]any{"n": "5"}},
		"missing":  {ApplicationProperties: map[string]any{"none": true}},
		"match id": {MessageID: to.Ptr("id"), CorrelationID: to.Ptr("c")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBus(t)
			topic := b.topic(admin.TopicProperties{})
			q := b.subscribe(topic, "s", &admin.RuleProperties{Name: "r", Filter: &filter})
			b.send(topic, azservicebus.Message{
				Body: []byte("x"), Subject: to.Ptr("order"), MessageID: to.Ptr("id"), CorrelationID: to.Ptr("c"),
				ApplicationProperties: map[string]any{"n": int32(5), "big": true, "s": "x"},
			})
			b.equal(len(b.drain(q)) == 1, name == "match" || name == "match id")
		})
	}
}

func TestServiceBusFiltersBySQL(t *testing.T) {
	b := newBus(t)
	topic := b.topic(admin.TopicProperties{})
	subscriptions := 0
	for expression, want := range map[string]bool{
		"type LIKE '%Order%'":           true,
		"type LIKE 'Order'":             false,
		"type NOT LIKE 'S_op.%'":        false,
		"type LIKE '%50!%%' ESCAPE '!'": false,
		"n = 5":                         true,
		"n IN (1, 5)":                   true,
		"n NOT IN (1, 5)":               false,
		"n IN (1, 2)":                   false,
		"n > 4 AND n < 6":               true,
		"n >= 6 OR urgent":              true,
		"urgent = TRUE AND NOT n <> 5":  true,
		"(n + 1) * 2 = 12 AND n % 2 = 1 AND -n = 0 - 5": true,
		"EXISTS(n) AND NOT EXISTS(m)":                   true,
		"m IS NULL AND n IS NOT NULL":                   true,
		"m = 1":                                         false,
		"NOT m = 1":                                     false, // unknown is not false
		"NOT m = 1 OR n = 5":                            true,
		"sys.Label = 'order' AND sys.MessageId = 'id'":  true,
		"sys.CorrelationId IS NULL":                     true,
		"user.type = 'Shop.OrderPlaced, Shop'":          true,
		"[a property] = 'it''s'":                        true,
		"n = @five":                                     true,
		"n = '5'":                                       false,
		"1=1":                                           true,
	} {
		t.Run(expression, func(t *testing.T) {
			b := &bus{T: t, ServiceBusNamespace: b.ServiceBusNamespace, ctx: b.ctx, client: b.client, admin: b.admin}
			subscriptions++
			q := b.subscribe(topic, fmt.Sprint("s", subscriptions), &admin.RuleProperties{
				Name: "r", Filter: &admin.SQLFilter{Expression: expression, Parameters: map[string]any{"@five": int64(5)}},
			})
			b.send(topic, azservicebus.Message{
				Body: []byte("x"), Subject: to.Ptr("order"), MessageID: to.Ptr("id"), ApplicationProperties: map[string]any{
					"type": "Shop.OrderPlaced, Shop", "n": int64(5), "urgent": true, "a property": "it's",
				},
			})
			b.equal(len(b.drain(q)) == 1, want)
		})
	}
}

func TestServiceBusRefusesSQLThatItDoesNotUnderstand(t *testing.T) {
	b := newBus(t)
	topic := b.topic(admin.TopicProperties{})
	_, err := b.admin.CreateSubscription(b.ctx, topic, "s", nil)
	b.must(err)
	for _, expression := range []string{"n =", "n = 5 5", "(n = 5", "sys.Nothing = 1", "n LIKE", "'open", "n = @unknown", "NOT", "§"} {
		_, err := b.admin.CreateRule(b.ctx, topic, "s", &admin.CreateRuleOptions{Name: to.Ptr("r"), Filter: &admin.SQLFilter{Expression: expression}})
		if status(err) != 400 {
			t.Errorf("%s: %v, want status 400", expression, err)
		}
	}
}

func TestServiceBusChangesAndRemovesRules(t *testing.T) {
	b := newBus(t)
	topic := b.topic(admin.TopicProperties{})
	q := b.subscribe(topic, "s", nil)
	named := func(name string) admin.RuleFilter {
		return &admin.CorrelationFilter{ApplicationProperties: map[string]any{"name": name}}
	}
	rule := func(name string) *admin.CreateRuleOptions {
		return &admin.CreateRuleOptions{Name: &name, Filter: named(name)}
	}
	_, err := b.admin.CreateRule(b.ctx, topic, "s", rule("a"))
	b.must(err)
	_, err = b.admin.CreateRule(b.ctx, topic, "s", rule("b"))
	b.must(err)
	_, err = b.admin.DeleteRule(b.ctx, topic, "s", "$Default", nil)
	b.must(err)
	publish := func(names ...string) {
		for _, name := range names {
			b.send(topic, azservicebus.Message{Body: []byte(name), ApplicationProperties: map[string]any{"name": name}})
		}
	}
	publish("a", "b", "c")
	b.equal(b.drain(q), []string{"a", "b"})
	_, err = b.admin.UpdateRule(b.ctx, topic, "s", admin.RuleProperties{Name: "b", Filter: named("c")})
	b.must(err)
	publish("a", "b", "c")
	b.equal(b.drain(q), []string{"a", "c"})
	var names []string
	for pager := b.admin.NewListRulesPager(topic, "s", nil); pager.More(); {
		page, err := pager.NextPage(b.ctx)
		b.must(err)
		for _, r := range page.Rules {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	b.equal(names, []string{"a", "b"})
	found, err := b.admin.GetRule(b.ctx, topic, "s", "b", nil)
	b.must(err)
	b.equal(found.Filter, named("c"))
}

func TestServiceBusActsOnACopyOfItsOwn(t *testing.T) {
	b := newBus(t)
	topic := b.topic(admin.TopicProperties{})
	q := b.subscribe(topic, "s", nil)
	_, err := b.admin.CreateRule(b.ctx, topic, "s", &admin.CreateRuleOptions{
		Name: to.Ptr("act"), Filter: &admin.TrueFilter{},
		Action: &admin.SQLAction{Expression: "SET mark = 'yes'; SET n = n + 1; REMOVE gone"},
	})
	b.must(err)
	b.send(topic, azservicebus.Message{ApplicationProperties: map[string]any{"n": int64(1), "gone": "x"}})
	var got []map[string]any
	for range 2 {
		got = append(got, b.complete(q).ApplicationProperties)
	}
	slices.SortFunc(got, func(a, b map[string]any) int { return len(fmt.Sprint(a)) - len(fmt.Sprint(b)) })
	b.equal(got, []map[string]any{{"n": int64(1), "gone": "x"}, {"n": int64(2), "mark": "yes"}})
}

func TestServiceBusSchedulesOnTopics(t *testing.T) {
	b := newBus(t)
	topic := b.topic(admin.TopicProperties{})
	q := b.subscribe(topic, "s", nil)
	s := b.sender(topic)
	first, second := text("cancelled"), text("kept")
	at := time.Now().Add(300 * time.Millisecond)
	_, err := s.ScheduleMessages(b.ctx, []*azservicebus.Message{&second}, at, nil)
	b.must(err)
	// A cancel may be slow.
	numbers, err := s.ScheduleMessages(b.ctx, []*azservicebus.Message{&first}, farAway(), nil)
	b.must(err)
	b.must(s.CancelScheduledMessages(b.ctx, numbers, nil))
	b.equal(string(b.complete(q).Body), "kept")
}

func TestServiceBusForwardsMessagesAndDeadLetters(t *testing.T) {
	b := newBus(t)
	end := b.queue(admin.QueueProperties{})
	failures := b.queue(admin.QueueProperties{})
	first := b.queue(admin.QueueProperties{ForwardTo: &end})
	b.send(first, azservicebus.Message{Body: []byte("x"), MessageID: to.Ptr("id")})
	m := b.complete(end)
	b.equal(m.MessageID, "id")

	work := b.queue(admin.QueueProperties{ForwardDeadLetteredMessagesTo: &failures, MaxDeliveryCount: to.Ptr[int32](1)})
	b.send(work, text("bad"))
	r := b.receiver(work)
	b.must(r.AbandonMessage(b.ctx, b.receive(r), nil))
	m = b.complete(failures)
	b.equal(of(m.DeadLetterReason), "MaxDeliveryCountExceeded")
	b.equal(of(m.DeadLetterSource), work)
	b.equal(m.DeliveryCount, uint32(1))
}

func TestServiceBusForwardsEarlierMessages(t *testing.T) {
	b := newBus(t)
	first, end := b.queue(admin.QueueProperties{}), b.queue(admin.QueueProperties{})
	b.send(first, text("1"), text("2"))
	_, err := b.admin.UpdateQueue(b.ctx, first, admin.QueueProperties{ForwardTo: &end}, nil)
	b.must(err)
	b.send(first, text("3"))
	b.equal(b.drain(end), []string{"1", "2", "3"})
}

func TestServiceBusDeadLettersFailedForwards(t *testing.T) {
	b := ownBus(t)
	end := b.queue(admin.QueueProperties{})
	first := b.queue(admin.QueueProperties{ForwardTo: &end})
	_, err := b.admin.DeleteQueue(b.ctx, end, nil)
	b.must(err)
	b.send(first, text("x"))
	r, err := b.client.NewReceiverForQueue(first, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueTransfer})
	b.must(err)
	b.equal(string(b.receive(r).Body), "x")
}
