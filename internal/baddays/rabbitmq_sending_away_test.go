package baddays_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// sendingAway closes the connection that an endpoint sends over, and a limit of the virtual host
// refuses another one. Messages used to fail until they were in quarantine, because receiving went
// on.
func sendingAway(t *testing.T) outcome {
	const messages, before = 2000, 200
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	node := brokertest.OwnRabbitMQ(t)
	u, err := url.Parse(node.URL)
	if err != nil {
		t.Fatal(err)
	}
	vhost := strings.TrimPrefix(u.Path, "/")
	conn, err := (&rabbitmq.Transport{URL: node.URL}).Open(ctx, transport.Env{Endpoint: "looking"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	name, handled := brokertest.Name(t, "sales"), newRuns()
	out := name + ".out"
	if err := conn.(transport.Installer).Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: out}}}); err != nil {
		t.Fatal(err)
	}
	p := newRawPublisher(t, node.URL)
	closed := make(chan struct{})
	stop := runWorker(t, endpoint.Config{
		Name: name, Transport: &rabbitmq.Transport{URL: node.URL}, Concurrency: 8,
		Recoverability: recoverability.Config{ErrorQueue: name + ".error", Delayed: recoverability.None},
	}, func(ctx context.Context, s *endpoint.Session, w work) error {
		handled.count(s, w)
		if handled.len() > before { // messages may come in another order
			<-closed
		}
		return s.Send(ctx, w, endpoint.To(out))
	})
	for i := range messages {
		p.publish(name, workMessage(i))
	}
	p.wait()
	handled.wait(ctx, t, before)
	node.Control("set_vhost_limits", "-p", vhost, `{"max-connections":1}`)
	node.Eval(fmt.Sprintf(`[rabbit_networking:close_connection(proplists:get_value(pid, C), "a test") || `+
		`C <- rabbit_networking:connection_info_all([pid, client_properties]), `+
		`{_, _, <<"%s sending">>} <- [lists:keyfind(<<"connection_name">>, 1, proplists:get_value(client_properties, C))]].`, name))
	close(closed)
	if err := backoff.Sleep(ctx, 5*time.Second); err != nil { // as long as the fault lasts
		t.Fatal(err)
	}
	node.Control("set_vhost_limits", "-p", vhost, `{"max-connections":-1}`)
	end := time.Now()
	awaitReady(ctx, t, conn, name, 0)
	handled.wait(ctx, t, messages)
	normal := time.Since(end)
	awaitReady(ctx, t, conn, name+".quarantine", 0)
	awaitReady(ctx, t, conn, name+".error", 0)
	if handled.most > 2 { // those that were being handled failed once
		t.Errorf("a message was delivered %d times", handled.most)
	}
	stop()
	stats, err := conn.(transport.Inspector).Inspect(ctx, out)
	if err != nil || stats[0].Ready < messages {
		t.Errorf("%d of %d messages were sent on, %v", stats[0].Ready, messages, err)
	}
	return outcome{
		message:    fmt.Sprintf("none of %d is in quarantine or in the error queue; delivered %d times at most", messages, handled.most),
		neighbours: "wait until messages can be sent",
		normal:     normal,
	}
}
