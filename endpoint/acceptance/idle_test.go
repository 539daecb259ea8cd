package acceptance_test

import (
	"context"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// An endpoint that receives nothing is ready again after an outage of its broker, without a
// message: otherwise all instances of a quiet service stay out of their load balancer.
func TestIdleEndpointIsReadyAgain(t *testing.T) {
	onBrokers(t, []string{"quorum", "postgres", "servicebus", "sqs"}, nil, func(t *testing.T, broker string) {
		at, away, back := outageOf(t, broker)
		r := start(t, idle(at))
		survivesOutages(t, r, away, back)
	})
}

// The same holds for the outbox of an endpoint that stores nothing.
func TestIdleOutboxIsReadyAgain(t *testing.T) {
	t.Parallel()
	rows, away, back := outageOf(t, "postgres")
	cfg := idle(&rabbitmq.Transport{URL: brokertest.RabbitMQ(t)})
	cfg.Outbox = rows
	r := start(t, cfg)
	survivesOutages(t, r, away, back)
}

func idle(at transport.Transport) endpoint.Config {
	return endpoint.Config{
		Name: "idle", Transport: at, Install: true, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, work) error { return nil })},
	}
}

// survivesOutages takes the broker away twice, and waits until the endpoint is not ready, and then
// ready again.
func survivesOutages(t *testing.T, r *running, away, back func()) {
	t.Helper()
	awaitHealth(t, r, true)
	for range 2 {
		away()
		awaitHealth(t, r, false)
		back()
		awaitHealth(t, r, true)
	}
}

// awaitHealth waits until the health of an endpoint says ready or not ready.
func awaitHealth(t *testing.T, r *running, ready bool) {
	t.Helper()
	began, tick := time.Now(), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for h := r.Health(); h.Ready != ready || !h.Live; h = r.Health() {
		if time.Since(began) > timeLimit {
			t.Fatalf("after %v the endpoint is ready: %v, live: %v, %q", timeLimit, h.Ready, h.Live, h.Reasons)
		}
		<-tick.C
	}
	t.Logf("ready: %v after %v", ready, time.Since(began).Round(time.Millisecond))
}

// outageOf returns a transport, and functions that take its broker away and bring it back.
func outageOf(t *testing.T, broker string) (transport.Transport, func(), func()) {
	t.Helper()
	behind := func(at string) (*brokertest.Proxy, string) {
		u, err := url.Parse(at)
		must(t, err)
		p := brokertest.NewProxy(t, u.Host)
		return p, p.URL(t, at)
	}
	switch broker {
	case "quorum":
		p, at := behind(brokertest.RabbitMQ(t))
		return &rabbitmq.Transport{URL: at}, p.Refuse, p.Resume
	case "postgres":
		p, at := behind(brokertest.Postgres(t))
		return &postgres.Transport{URL: at}, p.Refuse, p.Resume
	case "servicebus":
		ns := brokertest.OwnServiceBus(t)
		return &asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin},
			func() {
				ns.Control.Set(brokertest.ServiceBusFaults{RefuseConnections: true})
				ns.Control.Drop()
			},
			func() { ns.Control.Set(brokertest.ServiceBusFaults{}) }
	}
	p, at := behind(brokertest.SQS(t))
	return &sqs.Transport{Endpoint: at, Config: awsConfig(), QueuePrefix: brokertest.Name(t, "") + "-"}, p.Refuse, p.Resume
}
