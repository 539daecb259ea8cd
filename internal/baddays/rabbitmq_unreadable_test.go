package baddays_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// unreadableMessages puts messages whose headers the AMQP client cannot decode into each queue of
// an endpoint, in a row and among readable ones. The client used to end the connection over each of
// them.
func unreadableMessages(t *testing.T) outcome {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(size(2, 20))*time.Minute)
	defer cancel()
	url := brokertest.RabbitMQ(t)
	name, errorQueue := brokertest.Name(t, "sales"), brokertest.Name(t, "error")
	type order struct{ N int }
	var mu sync.Mutex
	handled, most := map[string]int{}, 0
	progress := make(chan struct{}, 1)
	e, err := endpoint.New(endpoint.Config{
		Name: name, Transport: &rabbitmq.Transport{URL: url}, Install: true, Concurrency: 8,
		Instance: "one", InstanceQueue: true, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[order]("Shop.Order")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ order) error {
			mu.Lock()
			defer mu.Unlock()
			handled[s.MessageID()]++
			most = max(most, s.Attempt().N)
			select {
			case progress <- struct{}{}:
			default:
			}
			return nil
		})},
		Recoverability: recoverability.Config{ErrorQueue: errorQueue},
	})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	over := make(chan error, 1)
	go func() { over <- e.Run(running) }()
	defer func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}()
	if err := e.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}

	bodies := map[string]bool{}
	good := 0
	p := newRawPublisher(t, url)
	for _, queue := range []string{name, name + "-one", name + ".dead-letters"} {
		for _, n := range []int{1, size(10, 100), size(20, 5000)} {
			for _, mixed := range []bool{false, true} {
				for i := range n {
					body := fmt.Sprintf(`{"bad":"%s %d %t %d"}`, queue, n, mixed, i)
					bodies[body] = true
					p.publish(queue, amqp.Publishing{Headers: amqp.Table{"deep": nested(40), "kept": "x"}, Body: []byte(body)})
					if mixed && !strings.HasSuffix(queue, ".dead-letters") {
						good++
						p.publish(queue, amqp.Publishing{
							Headers: amqp.Table{header.MessageID: fmt.Sprint("good-", good), header.EnclosedMessageTypes: "Shop.Order", header.ContentType: "application/json"},
							Body:    []byte(`{"N":1}`),
						})
					}
				}
			}
		}
	}
	p.wait()
	end := time.Now()
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(handled) == good
	}
	for !all() {
		select {
		case <-progress:
		case <-ctx.Done():
			t.Fatalf("%d of %d readable messages were handled; health: %+v", len(handled), good, e.Health())
		}
	}
	normal := time.Since(end)
	straight, readable := 0, 0
	for _, n := range []int{1, size(10, 100), size(20, 5000)} {
		for _, mixed := range []bool{false, true} {
			for range n {
				straight++
				p.publish(errorQueue, amqp.Publishing{Headers: amqp.Table{"deep": nested(40), "kept": "x"}, Body: []byte("straight there")})
				if mixed {
					readable++
					p.publish(errorQueue, amqp.Publishing{Body: []byte("readable")})
				}
			}
		}
	}
	p.wait()
	if normal > 100*time.Second {
		t.Errorf("the readable messages were handled %v after the last one was sent", normal)
	}
	if most > 2 {
		t.Errorf("a readable message was delivered %d times", most)
	}
	bad := len(bodies)
	checkErrorQueue(ctx, t, url, errorQueue, bodies, straight, readable)
	if h := e.Health(); !h.Ready {
		t.Errorf("health: %+v", h)
	}
	return outcome{
		message:    fmt.Sprintf("%d of %d are in the error queue, with their body and the bytes of their headers", bad-len(bodies), bad),
		neighbours: fmt.Sprintf("%d of %d were handled, delivered %d times at most", len(handled), good, most),
		normal:     normal,
	}
}

// checkErrorQueue waits until the error queue holds a copy of each message. It looks through the
// queue as "holdfast errors list" does, and has to find those that were sent to the error queue
// itself, straight ones unreadable.
func checkErrorQueue(ctx context.Context, t *testing.T, url, queue string, bodies map[string]bool, straight, readable int) {
	t.Helper()
	conn, err := (&rabbitmq.Transport{URL: url}).Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	awaitReady(ctx, t, conn, queue, len(bodies)+straight+readable)
	cur, err := conn.(transport.Browser).Browse(ctx, queue)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	for {
		ms, err := cur.Next(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(ms) == 0 {
			break
		}
		for _, m := range ms {
			body := string(m.Body)
			if body == "readable" && m.Undecodable == nil {
				readable--
				continue
			}
			raw, err := header.ParseUndecodable(m.Headers.Get(header.UndecodableHeaders))
			if err != nil || !strings.Contains(raw, "\x04deepF") || m.Headers.Get("kept") != "x" {
				t.Fatalf("headers %v, %v", m.Headers, err)
			}
			switch {
			case bodies[body] && m.Undecodable == nil && m.Headers.Get(header.HoldfastFaultClass) != "":
				delete(bodies, body)
			case body == "straight there" && m.Undecodable != nil:
				straight--
			default:
				t.Errorf("unexpected: body %q, undecodable because %v", m.Body, m.Undecodable)
			}
		}
	}
	if len(bodies) > 0 || straight != 0 || readable != 0 {
		t.Errorf("missing are %d messages, and %d unreadable and %d readable ones that were sent to the error queue itself", len(bodies), straight, readable)
	}
}

// nested is a table of tables, so many deep.
func nested(depth int) amqp.Table {
	if depth == 0 {
		return amqp.Table{}
	}
	return amqp.Table{"a": nested(depth - 1)}
}
