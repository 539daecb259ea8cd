package holdfast_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Where a retried message goes differs, and docs/guarantees.md says how.
func TestARetriedMessageGoesWhereItsTransportPutsIt(t *testing.T) {
	inPlace, behind := []string{"1", "1", "2", "3"}, []string{"1", "2", "3", "1"}
	for _, test := range []struct {
		name string
		open func() transport.Transport
		want []string // the messages delivered, when the first is retried once
	}{
		{"in memory", func() transport.Transport { return &inmemory.Transport{} }, inPlace},
		{"classic", func() transport.Transport {
			return &rabbitmq.Transport{URL: brokertest.RabbitMQ(t), QueueType: rabbitmq.Classic}
		}, inPlace},
		{"quorum", func() transport.Transport { return &rabbitmq.Transport{URL: brokertest.RabbitMQ(t)} }, inPlace},
		{"quorum without a limit", func() transport.Transport {
			return &rabbitmq.Transport{URL: brokertest.RabbitMQ(t), DeliveryLimit: rabbitmq.None}
		}, behind},
		{"sqlite", func() transport.Transport {
			return &sqlite.Transport{Path: filepath.Join(t.TempDir(), "order.db")}
		}, behind},
		{"postgres", func() transport.Transport { return &postgres.Transport{URL: brokertest.Postgres(t)} }, behind},
	} {
		got := deliveries(t, test.open(), brokertest.Name(t, "order"))
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// deliveries sends three messages, retries the first, completes the rest, one at a time.
func deliveries(t *testing.T, tr transport.Transport, queue string) (ids []string) {
	t.Helper()
	ctx := t.Context()
	c, err := tr.Open(ctx, transport.Env{Endpoint: "order"})
	must(t, err)
	defer func() { must(t, c.Close()) }()
	must(t, c.(transport.Installer).Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: queue}}}))
	for _, id := range []string{"1", "2", "3"} {
		_, err := c.Dispatch(ctx, []transport.Operation{{Queue: queue, Message: &transport.Message{ID: id}}})
		must(t, err)
	}
	r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	must(t, err)
	r.Window(1)
	for range 4 {
		ds, err := r.Receive(ctx, 1)
		must(t, err)
		ids = append(ids, ds[0].Message().ID)
		settle := ds[0].Complete
		if len(ids) == 1 {
			settle = ds[0].Retry
		}
		must(t, settle(ctx))
	}
	return ids
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
