package servicecontrol_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/servicecontrol"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

const (
	primary    = "Particular.ServiceControl"
	monitoring = "Particular.Monitoring"
	hostID     = "0199a2f06f2b7cc1a4c54f1fd0c4c9a1"
	hostGUID   = "0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1"
)

type placeOrder struct{ N int }

// landscape is a broker with the queues of ServiceControl, which records their messages.
type landscape struct {
	t      *testing.T
	broker *inmemory.Transport
	log    harness.Log
	start  time.Time

	mu       sync.Mutex
	received []report
}

// report is a message that ServiceControl has received.
type report struct {
	*transport.Message
	Queue string
	After time.Duration // from the start of the test
}

func (r report) name() string { return shortName(r.Headers.Get(header.EnclosedMessageTypes)) }

func shortName(name string) string { return name[strings.LastIndex(name, ".")+1:] }

// failures returns the lines about failures of a kind of report.
func (l *landscape) failures(report string) (found []string) {
	for _, line := range l.log.Lines("report=" + report) {
		if strings.Contains(line, "the endpoint is not affected") {
			found = append(found, line)
		}
	}
	return found
}

// inLandscape runs f in a synctest bubble.
func inLandscape(t *testing.T, f func(t *testing.T, l *landscape)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, &landscape{t: t, broker: &inmemory.Transport{}, start: time.Now()})
	})
}

// serve makes the queues and receives from them until the test is over.
func (l *landscape) serve(queues ...string) {
	l.t.Helper()
	l.broker.CreateQueues(queues...)
	conn, err := l.broker.Open(l.t.Context(), transport.Env{})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(l.t.Context())
	var wg sync.WaitGroup
	for _, queue := range queues {
		r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
		if err != nil {
			l.t.Fatal(err)
		}
		wg.Go(func() { l.receive(ctx, queue, r) })
	}
	l.t.Cleanup(func() {
		cancel()
		wg.Wait()
		_ = conn.Close()
	})
}

func (l *landscape) receive(ctx context.Context, queue string, r transport.Receiver) {
	for {
		ds, err := r.Receive(ctx, 100)
		if err != nil {
			return
		}
		for _, d := range ds {
			l.mu.Lock()
			l.received = append(l.received, report{d.Message(), queue, time.Since(l.start)})
			l.mu.Unlock()
			if err := d.Complete(ctx); err != nil {
				l.t.Error(err)
			}
		}
	}
}

// reports returns the received messages of a type, by its last name; of "" those with values.
func (l *landscape) reports(name string) (found []report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.received {
		if r.name() == name {
			found = append(found, r)
		}
	}
	return found
}

// sales returns a configuration of an endpoint.
func (l *landscape) sales(handlers ...endpoint.Handler) endpoint.Config {
	return endpoint.Config{
		Name: "Sales", Transport: l.broker, Install: true, Handlers: handlers,
		Messages: []endpoint.Message{endpoint.Command[placeOrder]("Shop.PlaceOrder", "Shop.ICommand").To("Sales")},
		Host:     endpoint.Host{ID: hostID, Name: "rack 7"},
		Logger:   slog.New(slog.NewTextHandler(&l.log, nil)),
	}
}

// running is an endpoint with reports.
type running struct {
	*harness.Running
	t *testing.T
}

// run attaches reports to an endpoint and runs it until end is called or the test is over.
func (l *landscape) run(cfg endpoint.Config, sc servicecontrol.Config) *running {
	l.t.Helper()
	if err := servicecontrol.Attach(&cfg, sc); err != nil {
		l.t.Fatal(err)
	}
	r := &running{harness.Start(l.t, cfg), l.t}
	synctest.Wait()
	return r
}

// end stops the endpoint and waits for its last reports.
func (r *running) end() {
	r.End()
	synctest.Wait()
}

// place sends an order to the endpoint itself.
func (r *running) place(n int, opts ...endpoint.SendOption) {
	r.t.Helper()
	if err := r.Send(r.t.Context(), placeOrder{n}, opts...); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// headers returns the headers of a message, without its id, which it checks.
func (r report) headers(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, value := range r.Headers.All() {
		all[name] = value
	}
	if id := all[header.MessageID]; id != r.ID || len(id) != 36 || id[14] != '4' {
		t.Errorf("the message %q has the header %q as its id", r.ID, id)
	}
	delete(all, header.MessageID)
	return all
}

// sameJSON compares a body with the properties that it must have; "*" stands for any value.
func sameJSON(t *testing.T, body []byte, want map[string]any) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	for name, value := range want {
		if _, ok := got[name]; ok && value == "*" {
			got[name] = value
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
