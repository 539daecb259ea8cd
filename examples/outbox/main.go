// Command outbox shows a service whose data is in PostgreSQL and whose messages are in RabbitMQ: a
// web request and a message handler that each write a row and send a message, both or neither. The
// command starts the service as a process of its own, kills it in the midst of its work, starts it
// again, and counts in the end. shop.go is the service.
//
//	POSTGRES_URL=postgres://user:password@localhost:5432/shop AMQP_URL=amqp://guest:guest@localhost:5672/ \
//	    go run ./examples/outbox
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

const (
	orders = 200
	kills  = 5
	asShop = "EXAMPLE_OUTBOX_SHOP" // set in the process of the service
)

func main() {
	postgresURL, amqpURL := os.Getenv("POSTGRES_URL"), os.Getenv("AMQP_URL")
	var err error
	if os.Getenv(asShop) != "" {
		err = shop(context.Background(), postgresURL, amqpURL, os.Stdout)
	} else {
		err = run(context.Background(), postgresURL, amqpURL, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run places orders at the service, kills it, and counts the charges and the ids of the messages
// that ship.
func run(ctx context.Context, postgresURL, amqpURL string, out io.Writer) error {
	ctx, stop := context.WithTimeout(ctx, 3*time.Minute)
	defer stop()
	db, err := pgx.Connect(ctx, postgresURL)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	if _, err := db.Exec(ctx, `create schema example; create table example.orders (order_id text primary key);
		create table example.charges (order_id text)`); err != nil {
		return err
	}
	defer db.Exec(context.WithoutCancel(ctx), `drop schema example cascade`) //nolint:errcheck // it leaves nothing behind

	seen := &shipments{
		run: strconv.FormatInt(time.Now().UnixNano(), 36), orders: map[string]bool{}, ids: map[string]bool{}, all: make(chan struct{}),
	}
	warehouse, err := endpoint.New(endpoint.Config{
		Name: "shipping", Transport: &rabbitmq.Transport{URL: amqpURL}, Install: true,
		Messages: messages, Handlers: []endpoint.Handler{endpoint.Handle(seen.ship)},
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- warehouse.Run(ctx) }()
	if err := warehouse.WaitReady(ctx); err != nil {
		return err
	}

	service := &service{env: append(os.Environ(), asShop+"=1", "POSTGRES_URL="+postgresURL, "AMQP_URL="+amqpURL)}
	if err := service.start(ctx); err != nil {
		return err
	}
	defer service.kill()
	for k := range kills {
		var placed sync.WaitGroup
		for i := range orders / kills {
			placed.Go(func() { service.place(ctx, fmt.Sprintf("%s-%d-%d", seen.run, k, i)) })
			if i == orders/kills/2 { // half of the requests have begun
				service.kill()
				if err := service.start(ctx); err != nil {
					return err
				}
			}
		}
		placed.Wait()
	}
	select {
	case <-seen.all:
	case <-ctx.Done():
		return fmt.Errorf("not all of %d orders were shipped: %w", orders, context.Cause(ctx))
	}
	stop() // of the service too
	if err := <-ended; err != nil {
		return err
	}
	var placed, charged, distinct int
	err = db.QueryRow(context.WithoutCancel(ctx), `select (select count(*) from example.orders), count(*), count(distinct order_id)
		from example.charges where starts_with(order_id, $1)`, seen.run).Scan(&placed, &charged, &distinct)
	fmt.Fprintf(out, "%d orders placed, %d charges of %d orders, %d kills\n", placed, charged, distinct, kills)
	fmt.Fprintf(out, "%d orders shipped by messages with %d ids; %d of them arrived again\n", len(seen.orders), len(seen.ids), seen.again)
	return err
}

// service is the process of the shop, or the one that has taken its place.
type service struct {
	env []string

	mu      sync.Mutex // guards the rest
	cmd     *exec.Cmd
	address string
}

func (s *service) start(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env, cmd.Stderr = s.env, os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the service has not started: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd, s.address = cmd, strings.TrimSpace(address)
	return nil
}

// kill ends the process as kill -9 does.
func (s *service) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // which reports that it was killed
}

// place places an order. Where it gets no answer it asks again, until ctx ends.
func (s *service) place(ctx context.Context, order string) {
	for ctx.Err() == nil {
		s.mu.Lock()
		url := "http://" + s.address + "/orders/" + order
		s.mu.Unlock()
		if request, err := http.NewRequestWithContext(ctx, http.MethodPut, url, http.NoBody); err == nil {
			if answer, err := http.DefaultClient.Do(request); err == nil {
				_ = answer.Body.Close()
				if answer.StatusCode == http.StatusNoContent {
					return
				}
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// shipments is the receiver of what the service sends. It has no inbox, and so it sees each message
// that arrives.
type shipments struct {
	run string
	all chan struct{} // closed when all orders were shipped

	mu          sync.Mutex // guards the rest
	orders, ids map[string]bool
	again       int
}

func (s *shipments) ship(_ context.Context, session *endpoint.Session, m ShipOrder) error {
	if !strings.HasPrefix(m.OrderID, s.run) {
		return nil // of an earlier run that was interrupted
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[session.MessageID()] {
		s.again++
		return nil
	}
	s.ids[session.MessageID()] = true
	if !s.orders[m.OrderID] {
		if s.orders[m.OrderID] = true; len(s.orders) == orders {
			close(s.all)
		}
	}
	return nil
}
