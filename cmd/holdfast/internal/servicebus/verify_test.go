package servicebus_test

import (
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/servicebus"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

func TestWhatKeepsAnEndpointFromAQueueIsTold(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	client, err := admin.NewClientFromConnectionString(ns.ConnectionString, &admin.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: ns.AdminTransport()},
	})
	if err != nil {
		t.Fatal(err)
	}
	many := to.Ptr[int32](100)
	for _, q := range []struct {
		name       string
		properties admin.QueueProperties
	}{
		{"fit", admin.QueueProperties{MaxDeliveryCount: many}},
		{"requires sessions", admin.QueueProperties{MaxDeliveryCount: many, RequiresSession: to.Ptr(true)}},
		{"forwards", admin.QueueProperties{MaxDeliveryCount: many, ForwardTo: to.Ptr("shop/fit")}},
		{"ReceiveDisabled", admin.QueueProperties{MaxDeliveryCount: many, Status: to.Ptr(admin.EntityStatusReceiveDisabled)}},
		{"after 10 hand-outs", admin.QueueProperties{}},
	} {
		name := strings.ReplaceAll(q.name, " ", "-")
		if _, err := client.CreateQueue(t.Context(), "shop/"+name, &admin.CreateQueueOptions{Properties: &q.properties}); err != nil {
			t.Fatal(err)
		}
		n, err := servicebus.Of(&asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin, Hierarchy: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		report, err := n.Verify(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: name}}})
		if err != nil {
			t.Fatal(err)
		}
		if q.name == "fit" {
			if !report.OK || report.Err() != nil {
				t.Errorf("%s: %+v", q.name, report)
			}
			continue
		}
		if report.OK || report.Err() == nil || len(report.Found) != 1 || !strings.Contains(report.Found[0].Detail, q.name) {
			t.Errorf("%s: %+v", q.name, report)
		}
	}
}

func TestRemovingTakesQueuesAndNothingElse(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	n, err := servicebus.Of(&asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Remove(t.Context(), "missing"); err != nil {
		t.Errorf("a queue that is not there: %v", err)
	}
	restricted, err := servicebus.Of(&asb.Transport{ConnectionString: ns.Control.Restricted("Listen"), Administration: ns.Admin})
	if err != nil {
		t.Fatal(err)
	}
	if err := restricted.Remove(t.Context(), "sales"); err == nil || !strings.Contains(err.Error(), "no right to manage") {
		t.Errorf("without the right to: %v", err)
	}
}
