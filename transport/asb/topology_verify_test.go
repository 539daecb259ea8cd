package asb_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// verified returns the findings of a plan of queues and published types.
func verified(t testing.TB, c transport.Conn, plan transport.Plan) []transport.Finding {
	t.Helper()
	found, err := c.(transport.Verifier).Verify(within(t), plan)
	must(t, err)
	return found
}

// subscriptionVerifier compares subscriptions, too.
type subscriptionVerifier interface {
	VerifySubscriptions(ctx context.Context, queue string, types []string) ([]transport.Finding, error)
}

func TestAnInstalledPlanHasNoFindings(t *testing.T) {
	tr := on(brokertest.OwnServiceBus(t))
	tr.Hierarchy = "shop"
	c := open(t, tr)
	plan := transport.Plan{Queues: []transport.Queue{{Name: "sales"}, {Name: "error", Shared: true}}, Types: [][]string{{"T"}, {"U", "T"}}}
	want := []transport.Finding{
		{Kind: "queue", Name: "sales", State: transport.Missing},
		{Kind: "queue", Name: "error", State: transport.Missing},
		{Kind: "topic", Name: "T", State: transport.Missing},
		{Kind: "topic", Name: "holdfast.hierarchies", State: transport.Missing},
	}
	if found := verified(t, c, plan); !slices.Equal(found, want) {
		t.Errorf("before Install: %+v, want %+v", found, want)
	}
	must(t, c.(transport.Installer).Install(within(t), plan))
	if found := verified(t, c, plan); len(found) > 0 {
		t.Errorf("after Install: %+v", found)
	}
}

func TestVerifyFindsQueuesThatAreNotFitForAnEndpoint(t *testing.T) {
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
	tr := on(ns)
	tr.Hierarchy = "shop"
	c := open(t, tr)
	many := new(int32(100))
	for _, q := range []struct {
		detail     string
		properties admin.QueueProperties
	}{
		{"", admin.QueueProperties{MaxDeliveryCount: many}},
		{"requires message sessions", admin.QueueProperties{MaxDeliveryCount: many, RequiresSession: new(true)}},
		{"forwards its messages to", admin.QueueProperties{MaxDeliveryCount: many, ForwardTo: new("shop/queue")}},
		{"is ReceiveDisabled", admin.QueueProperties{MaxDeliveryCount: many, Status: new(admin.EntityStatusReceiveDisabled)}},
		{"after 9 deliveries", admin.QueueProperties{MaxDeliveryCount: new(int32(9))}},
	} {
		name := strings.ReplaceAll(q.detail+" queue", " ", "-")
		name = strings.TrimPrefix(name, "-")
		_, err := rawAdmin(t, ns).CreateQueue(within(t), "shop/"+name, &admin.CreateQueueOptions{Properties: &q.properties})
		must(t, err)
		found := verified(t, c, transport.Plan{Queues: []transport.Queue{{Name: name}}})
		if q.detail == "" {
			if len(found) != 0 {
				t.Errorf("a fit queue: %+v", found)
			}
			continue
		}
		if len(found) != 1 || found[0].State != transport.Differs || !strings.Contains(found[0].Detail, q.detail) {
			t.Errorf("%s: %+v", q.detail, found)
		}
	}
}

// A tool that takes a message out of a shared queue uses up deliveries of those in front.
func TestVerifyNamesSharedQueuesWithALimit(t *testing.T) {
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
	c := open(t, on(ns))
	for name, most := range map[string]*int32{"error": new(int32(3)), "audit": new(int32(100))} {
		_, err := rawAdmin(t, ns).CreateQueue(within(t), name, &admin.CreateQueueOptions{Properties: &admin.QueueProperties{MaxDeliveryCount: most}})
		must(t, err)
	}
	found := verified(t, c, transport.Plan{Queues: []transport.Queue{{Name: "error", Shared: true}, {Name: "audit", Shared: true}}})
	if len(found) != 1 || found[0].Name != "error" || !strings.Contains(found[0].Detail, "after 3 deliveries") {
		t.Errorf("%+v, want the error queue", found)
	}
}

func TestVerifyWithoutTheRightToManageKnowsWhatExists(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	install(t, open(t, on(ns)), "sales")
	c := open(t, &asb.Transport{ConnectionString: ns.Control.Restricted("Send", "Listen"), Administration: ns.Admin})
	plan := transport.Plan{Queues: []transport.Queue{{Name: "sales"}, {Name: "missing"}}, Types: [][]string{{"T"}}}
	want := []transport.Finding{
		{Kind: "queue", Name: "sales", State: transport.Unknown, Detail: "no right to manage the namespace"},
		{Kind: "queue", Name: "missing", State: transport.Missing},
	}
	if found := verified(t, c, plan); !slices.Equal(found, want) {
		t.Errorf("found %+v, want %+v", found, want)
	}
	if err := c.(transport.Remover).Remove(within(t), "sales"); err == nil || !strings.Contains(err.Error(), "no right to manage") {
		t.Errorf("Remove without the right to: %v", err)
	}
}

func TestVerifyComparesSubscriptions(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.Topology = asb.Topology{NoHierarchies: true, SubscribeTo: map[string][]string{"Bill": {"bills"}}, Shared: []string{"bills"}}
	c := open(t, tr)
	install(t, c, "sales", "other")
	compare := func() []transport.Finding {
		found, err := c.(subscriptionVerifier).VerifySubscriptions(within(t), "sales", []string{"Bill", "Order"})
		must(t, err)
		return found
	}
	if found := compare(); len(found) != 2 || found[0].State != transport.Missing || found[0].Name != "Order/sales" {
		t.Errorf("before Subscribe: %+v", found)
	}
	subscribe(t, c, "sales", "Bill", "Order")
	if found := compare(); len(found) != 0 {
		t.Errorf("after Subscribe: %+v", found)
	}
	client := rawAdmin(t, ns)
	_, err := client.DeleteRule(within(t), "bills", "sales", "Bill", nil)
	must(t, err)
	order, err := client.GetSubscription(within(t), "Order", "sales", nil)
	must(t, err)
	order.ForwardTo = new("other")
	_, err = client.UpdateSubscription(within(t), "Order", "sales", order.SubscriptionProperties, nil)
	must(t, err)
	found := compare()
	if len(found) != 2 || found[1] != (transport.Finding{Kind: "rule", Name: "bills/sales/Bill", State: transport.Missing}) ||
		found[0].State != transport.Differs || !strings.Contains(found[0].Detail, `instead of "sales"`) {
		t.Errorf("after changes: %+v", found)
	}
}

func TestRemoveDeletesQueuesWithTheirSubscriptions(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	prod := on(ns)
	prod.Hierarchy = "prod"
	inProd := open(t, prod)
	for _, conn := range []transport.Conn{c, inProd} {
		install(t, conn, "sales", "billing")
		subscribe(t, conn, "sales", "T", "U")
		subscribe(t, conn, "billing", "T")
	}
	dispatch(t, c, to("sales", "1"))
	must(t, c.(transport.Remover).Remove(within(t), "sales", "missing"))
	must(t, c.(transport.Remover).Remove(within(t), "sales"))
	compare := func(conn transport.Conn, queue string) int {
		found, err := conn.(subscriptionVerifier).VerifySubscriptions(within(t), queue, []string{"T"})
		must(t, err)
		return len(found) + len(verified(t, conn, transport.Plan{Queues: []transport.Queue{{Name: queue}}}))
	}
	if n := compare(c, "sales"); n != 3 { // the queue, and a subscription on each of two topics
		t.Errorf("%d findings for the removed queue, want 3", n)
	}
	for name, n := range map[string]int{
		"billing": compare(c, "billing"), "prod/sales": compare(inProd, "sales"), "prod/billing": compare(inProd, "billing"),
	} {
		if n != 0 {
			t.Errorf("%d findings for queue %s, want none", n, name)
		}
	}
	if _, err := c.Dispatch(within(t), []transport.Operation{to("sales", "2")}); !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("a send to the removed queue: %v", err)
	}
}
