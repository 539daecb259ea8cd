package asb_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

func TestSubscriptionsAreThoseThatSubscribeCreates(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.Hierarchy = "prod"
	tr.Topology.PublishTo, tr.Topology.Shared = map[string]string{"Shop.Paid": "money"}, []string{"money"}
	c := open(t, tr)
	install(t, c, "sales")
	types := []string{"Shop.Placed", "Shop.Paid"}
	must(t, c.(transport.Subscriber).Subscribe(within(t), "sales", types))

	raw, rules := rawAdmin(t, ns), map[string][]string{}
	for _, s := range tr.Subscriptions("sales", types...) {
		found, err := raw.GetSubscription(within(t), s.Topic, s.Name, nil)
		if err != nil || found == nil {
			t.Errorf("subscription %q of topic %q: %v", s.Name, s.Topic, err)
		}
		for _, rule := range s.Rules {
			if found, err := raw.GetRule(within(t), s.Topic, s.Name, rule, nil); err != nil || found == nil {
				t.Errorf("rule %q of topic %q: %v", rule, s.Topic, err)
			}
		}
		rules[s.Topic] = s.Rules
	}
	want := map[string][]string{"prod/Shop.Placed": nil, "prod/holdfast.hierarchies": {"Shop.Placed"}, "prod/money": {"Shop.Paid"}}
	if diff := cmp.Diff(want, rules); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
