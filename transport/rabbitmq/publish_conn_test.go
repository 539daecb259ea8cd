package rabbitmq

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestSendsWaitWhileTheBrokerBlocksTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		p := &publisher{brokerConn: &brokerConn{link: &link{out: newCoalescer(client)}}}
		blocks := make(chan amqp.Blocking)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			p.watchBlocked(blocks)
		}()
		if err := p.ready(t.Context()); err != nil {
			t.Fatal(err)
		}

		blocks <- amqp.Blocking{Active: true, Reason: "low on memory"}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.ready(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "low on memory") {
			t.Errorf("blocked: %v", err)
		}
		waited := make(chan error)
		go func() { waited <- p.ready(t.Context()) }()
		synctest.Wait()
		blocks <- amqp.Blocking{}
		if err := <-waited; err != nil {
			t.Errorf("no longer blocked: %v", err)
		}

		blocks <- amqp.Blocking{Active: true}
		synctest.Wait()
		go func() { waited <- p.ready(t.Context()) }()
		synctest.Wait()
		close(blocks) // the connection has ended
		if err := <-waited; err != nil {
			t.Errorf("the end of the connection: %v", err)
		}
		<-watched
		_, _ = p.link.out.Close(), server.Close()
	})
}

func TestNoticesAreCountedPerMessageAndQueue(t *testing.T) {
	r := returned{notices: make(chan amqp.Return, 10)}
	for _, n := range []amqp.Return{
		{MessageId: "a", RoutingKey: "q"}, {MessageId: "a", RoutingKey: "q"}, {MessageId: "b", RoutingKey: "q"},
	} {
		r.notices <- n
	}
	for i, want := range []struct {
		id, queue string
		returned  bool
	}{{"b", "p", false}, {"a", "q", true}, {"b", "q", true}, {"b", "q", false}, {"a", "q", true}, {"a", "q", false}} {
		if got := r.take(want.id, want.queue); got != want.returned {
			t.Errorf("%d: message %q to %q returned: %v", i, want.id, want.queue, got)
		}
	}
	if len(r.counts) > 0 {
		t.Errorf("remembered for ever: %v", r.counts)
	}
}
