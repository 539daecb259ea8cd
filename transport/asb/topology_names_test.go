package asb

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

func TestNamesAreThoseOfNServiceBus(t *testing.T) {
	plain, prod := newNaming(&Transport{}), newNaming(&Transport{Hierarchy: "prod"})
	long := "Shop.Contracts.Billing.Events.TheOrderOfACustomerWasPlaced"
	for _, test := range []struct{ what, got, want string }{
		{"a queue", entity(t, plain, "Shop.Sales-1"), "Shop.Sales-1"},
		{"a queue in a hierarchy", entity(t, prod, "sales"), "prod/sales"},
		{"an address that NServiceBus wrote", entity(t, prod, "prod/sales"), "prod/sales"},
		{"a queue that begins like the hierarchy", entity(t, prod, "production"), "prod/production"},
		{"a subscription", plain.subscription("Shop.Sales"), "Shop.Sales"},
		{"a subscription in a hierarchy", prod.subscription("sales"), "sales"},
		{"a long subscription", plain.subscription(long), long[:33] + "-" + hash16(long)},
		{"a subscription of a queue with slashes", plain.subscription("a/b"), "a-b"},
		{"a topic", topicOf("Shop.OrderPlaced"), "Shop.OrderPlaced"},
		{"the topic of a nested type", topicOf("Shop.Orders+Placed"), "Shop.Orders.Placed"},
		{"a rule", ruleName("Shop.OrderPlaced"), "Shop.OrderPlaced"},
		{"a long rule", ruleName(long), "Rule-" + hash16(long)},
		{"a rule of a nested type", ruleName("Shop.Orders+Placed"), "Rule-" + hash16("Shop.Orders+Placed")},
	} {
		if test.got != test.want {
			t.Errorf("%s is called %q, want %q", test.what, test.got, test.want)
		}
	}
	for _, name := range []string{plain.subscription(long), ruleName(long)} {
		if len(name) > maxChild {
			t.Errorf("%q has %d characters", name, len(name))
		}
	}
}

func entity(t *testing.T, n naming, name string) string {
	t.Helper()
	path, err := n.entity(name)
	if err != nil {
		t.Error(err)
	}
	return path
}

func TestAnInvalidNameIsNoQueue(t *testing.T) {
	n := newNaming(&Transport{})
	for _, name := range []string{"", "a b", "-a", "a-", "a?b", strings.Repeat("x", 261), "ä", "a\x00"} {
		if _, err := n.entity(name); !errors.Is(err, transport.ErrNoQueue) {
			t.Errorf("%q: %v, want ErrNoQueue", name, err)
		}
	}
}

func TestDeadLettersAreAQueueOfTheirOwnName(t *testing.T) {
	path, dead, err := newNaming(&Transport{Hierarchy: "prod"}).queue("sales/$DeadLetterQueue")
	if path != "prod/sales" || !dead || err != nil {
		t.Errorf("%q, %v, %v", path, dead, err)
	}
}

func TestTopologyRoutes(t *testing.T) {
	mapped := Topology{
		PublishTo:   map[string]string{"Shop.Placed": "orders", "Shop.Paid": "payments"},
		SubscribeTo: map[string][]string{"Shop.IOrder": {"orders", "returns"}},
		Shared:      []string{"orders"},
	}
	type routes struct {
		Publish   route
		Subscribe []route
	}
	hierarchies := route{"holdfast.hierarchies", true}
	for name, test := range map[string]struct {
		topology Topology
		types    []string
		want     routes
	}{
		"a flat event": {Topology{}, []string{"Shop.Placed"}, routes{route{"Shop.Placed", false}, []route{{"Shop.Placed", false}, hierarchies}}},
		"an event with base types": {
			Topology{}, []string{"Shop.Placed", "Shop.IOrder"}, routes{hierarchies, []route{{"Shop.Placed", false}, hierarchies}},
		},
		"without hierarchies": {
			Topology{NoHierarchies: true}, []string{"Shop.Placed", "Shop.IOrder"}, routes{route{"Shop.Placed", false}, []route{{"Shop.Placed", false}}},
		},
		"another topic for hierarchies": {
			Topology{HierarchyTopic: "bundle"}, []string{"A", "B"}, routes{route{"bundle", true}, []route{{"A", false}, {"bundle", true}}},
		},
		"mapped to a shared topic": {mapped, []string{"Shop.Placed", "Shop.IOrder"}, routes{route{"orders", true}, []route{{"orders", true}}}},
		"mapped to a topic":        {mapped, []string{"Shop.Paid"}, routes{route{"payments", false}, []route{{"payments", false}}}},
		"subscribed to on several": {mapped, []string{"Shop.IOrder"}, routes{route{"Shop.IOrder", false}, []route{{"orders", true}, {"returns", false}}}},
	} {
		got := routes{test.topology.publishTo(test.types), test.topology.subscribeTo(test.types[0])}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(route{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The configuration is checked before the driver connects.
func TestConfigurationIsCheckedBeforeConnecting(t *testing.T) {
	const secret = "c2VjcmV0c2VjcmV0"
	valid := "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=app;SharedAccessKey=" + secret
	for want, tr := range map[string]*Transport{
		"neither Transport.ConnectionString":        {},
		"both set":                                  {ConnectionString: valid, Namespace: "shop.servicebus.windows.net"},
		"without Transport.Credential":              {Namespace: "shop.servicebus.windows.net"},
		"the connection string is not valid":        {ConnectionString: "sb://app:" + secret + "@shop"},
		"as the portal shows it":                    {ConnectionString: "Endpoint=https://shop;SharedAccessKey=" + secret},
		"Endpoint=sb://NAME.servicebus.windows.net": {ConnectionString: "Endpoint=sb://app:" + secret + "@shop;SharedAccessKey=x"},
		"not valid: write":                          {ConnectionString: "Endpoint=sb://shop;SharedAccessKeyName=app"},
		"MaxDeliveryCount -1":                       {ConnectionString: valid, MaxDeliveryCount: -1},
		"LockDuration 6m0s":                         {ConnectionString: valid, LockDuration: 6 * time.Minute},
		"Links 17":                                  {ConnectionString: valid, Links: 17},
		"MaxMessageSize 1000":                       {ConnectionString: valid, MaxMessageSize: 1000},
		"DuplicateDetection 1s":                     {ConnectionString: valid, DuplicateDetection: time.Second},
		"MaxSize -1":                                {ConnectionString: valid, MaxSize: -1},
		`Hierarchy "a b"`:                           {ConnectionString: valid, Hierarchy: "a b"},
		`topic "a b"`:                               {ConnectionString: valid, Topology: Topology{PublishTo: map[string]string{"T": "a b"}}},
		`subscription "a/b"`:                        {ConnectionString: valid, Topology: Topology{Subscriptions: map[string]string{"q": "a/b"}}},
		"Transport.Administration is no URL":        {ConnectionString: valid, Administration: "localhost:5300"},
	} {
		_, err := tr.Open(t.Context(), transport.Env{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%v, want %q and no secret", err, want)
		}
	}
}

func TestAnEmulatorIsReachedWithoutTLS(t *testing.T) {
	n, err := newNamespace(&Transport{
		ConnectionString: "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true",
	}, transport.Env{})
	if err != nil || !n.insecure || n.Address != "localhost:5672" || n.Administration != "http://localhost:5300" {
		t.Errorf("%+v, %v", n, err)
	}
	n, err = newNamespace(&Transport{
		ConnectionString: "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=a2V5;EntityPath=sales",
	}, transport.Env{})
	if err != nil || n.insecure || n.Address != "shop.servicebus.windows.net:5671" || n.Administration != "" || n.entity != "sales" {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestDurationsAreThoseOfTheAdministration(t *testing.T) {
	for d, want := range map[time.Duration]string{5 * time.Minute: "PT300S", 1500 * time.Millisecond: "PT1.5S"} {
		if got := duration(d); got != want || parseDuration(got) != d {
			t.Errorf("%v is %q, which is %v", d, got, parseDuration(got))
		}
	}
	for s, want := range map[string]time.Duration{
		"PT1M": time.Minute, "P1DT2H3M4.5S": 26*time.Hour + 3*time.Minute + 4500*time.Millisecond, "P10675199DT2H48M5.4775807S": 0, "": 0, "1m": 0, "PT1..S": 0,
	} {
		if got := parseDuration(s); got != want {
			t.Errorf("%q is %v, want %v", s, got, want)
		}
	}
}
