package asb_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

func onEmulator(t *testing.T) (*brokertest.ServiceBusNamespace, *asb.Transport) {
	t.Helper()
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusEmulator)
	return ns, on(ns)
}

func TestInstallKeepsToTheLimitsOfTheEmulator(t *testing.T) {
	ns, tr := onEmulator(t)
	for _, run := range []string{"a new namespace", "all is there"} {
		var log bytes.Buffer
		c, err := tr.Open(within(t), transport.Env{Endpoint: "work", Instance: "one", Logger: slog.New(slog.NewTextHandler(&log, nil))})
		must(t, err)
		must(t, c.(transport.Installer).Install(within(t), transport.Plan{
			Queues: []transport.Queue{{Name: "work"}, {Name: "work.quarantine"}, {Name: "error", Shared: true}},
			Types:  [][]string{{"Work.Done"}},
		}))
		subscribe(t, c, "work", "Work.Done", "Work.Started")
		must(t, c.Close())
		if n := strings.Count(log.String(), "the emulator limits deliveries"); n != 1 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%s: the log is\n%s", run, log.String())
		}
	}
	manage, err := admin.NewClientFromConnectionString(ns.ConnectionString, &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: ns.AdminTransport()}})
	must(t, err)
	for _, name := range []string{"work", "work.quarantine", "error"} {
		q, err := manage.GetQueue(within(t), name, nil)
		must(t, err)
		if q == nil || *q.MaxDeliveryCount != 10 || *q.MaxSizeInMegabytes != 100 || *q.LockDuration != "PT5M" {
			t.Errorf("%s is %+v", name, q)
		}
	}
	s, err := manage.GetSubscription(within(t), "Work.Done", "work", nil)
	must(t, err)
	if s == nil || *s.MaxDeliveryCount != 10 {
		t.Errorf("the subscription is %+v", s)
	}
}

func TestInstallSaysThatTheNamespaceTakesNoMore(t *testing.T) {
	_, tr := onEmulator(t)
	c := open(t, tr)
	var plan transport.Plan
	for i := range 51 {
		plan.Queues = append(plan.Queues, transport.Queue{Name: fmt.Sprint("q", i)})
	}
	err := c.(transport.Installer).Install(within(t), plan)
	if err == nil || !strings.Contains(err.Error(), `install queue "q50": the queue or topic is full, or a quota is reached`) || !strings.Contains(err.Error(), "Max allowed: 50") {
		t.Errorf("Install: %v", err)
	}
}

// The emulator accepts ten connections.
func TestTwoEndpointsFitTheEmulator(t *testing.T) {
	t.Parallel()
	ns, tr := onEmulator(t)
	handled := make(chan string, 10)
	var stages []*stage
	for _, name := range []string{"work", "other"} {
		stages = append(stages, run(t, on(ns), func(cfg *endpoint.Config) { cfg.Name = name }, func(context.Context, *endpoint.Session, job) error {
			handled <- name
			return nil
		}))
	}
	for i, name := range []string{"other", "work"} {
		must(t, stages[i].Send(within(t), job{i}, endpoint.To(name)))
		if got := await(t, "it is handled", handled); got != name {
			t.Errorf("%s has handled it, want %s", got, name)
		}
	}
	if n := ns.Control.State().Counts.Connections; n > 10 {
		t.Errorf("%d connections", n)
	}
	dispatch(t, open(t, tr), to("work", "one more")) // a third one may send
}
