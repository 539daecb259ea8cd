package asb_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// shared is a namespace for several tests. A test removes the queues and topics that it creates
// there.
type shared struct {
	*brokertest.ServiceBusNamespace
	admin *admin.Client
}

func sharedNamespace(t *testing.T) shared {
	t.Helper()
	ns := brokertest.ServiceBus(t)
	client, err := admin.NewClientFromConnectionString(ns.ConnectionString, &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: ns.AdminTransport()}})
	must(t, err)
	if ns.Control != nil {
		t.Cleanup(func() {
			if state := ns.Control.State(); state.Entities > 0 {
				t.Errorf("%d queues and topics are left: %v", state.Entities, state.Queues)
			}
		})
	}
	return shared{ns, client}
}

// name returns a unique name. The queue and the topic of that name are removed after the test, with
// the topic's subscriptions.
func (s shared) name(t testing.TB, part string) string {
	name := brokertest.Name(t, part)
	t.Cleanup(func() {
		ctx := context.Background()
		_, queue := s.admin.DeleteQueue(ctx, name, nil)
		_, topic := s.admin.DeleteTopic(ctx, name, nil)
		for _, err := range []error{queue, topic} {
			var answer *azcore.ResponseError
			if err != nil && (!errors.As(err, &answer) || answer.StatusCode != http.StatusNotFound) {
				t.Errorf("remove %q: %v", name, err)
			}
		}
	})
	return name
}

// transport returns the driver with a shared topic of its own, which is removed with its
// subscriptions.
func (s shared) transport(t testing.TB) *asb.Transport {
	tr := on(s.ServiceBusNamespace)
	tr.Topology.HierarchyTopic = s.name(t, "hierarchies")
	return tr
}
