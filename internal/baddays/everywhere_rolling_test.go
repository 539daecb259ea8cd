package baddays_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// rollingCommit is the version that this one replaces: the program testdata/shop is built from
// both.
const rollingCommit = "a477253"

// rolledShop is a deployment of the shop, and the step back, on each kind of database.
func rolledShop(t *testing.T) outcome {
	program, err := os.ReadFile("testdata/shop/main.go")
	must(t, err)
	earlier := buildFrom(t, rollingCommit, program)
	present := filepath.Join(t.TempDir(), "present")
	build(t, ".", "./testdata/shop", present)
	for name, m := range map[string]*mixture{
		"postgres":             {broker: "postgres", place: brokertest.Postgres(t)},
		"sqlite":               {broker: "sqlite", place: filepath.Join(t.TempDir(), "mixed.db")},
		"rabbitmq with outbox": {broker: "rabbitmq", place: brokertest.RabbitMQ(t), more: []string{brokertest.Postgres(t)}},
	} {
		t.Run(name, func(t *testing.T) {
			m.t, m.attempts = t, map[int]int{}
			m.rollShop(earlier, present)
		})
	}
	return outcome{message: "each order ends once, in whichever version", neighbours: "no timer, job, row or occurrence is lost or doubled"}
}

// rollShop runs the earlier version, both, the present one alone, and both again, while orders
// arrive.
func (m *mixture) rollShop(earlier, present string) {
	t := m.t
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	orders := size(200, 400)
	stops := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})}
	var workers sync.WaitGroup
	begin := func(program string, i int) { workers.Go(func() { m.work(ctx, program, stops[i]) }) }
	began := time.Now()
	begin(earlier, 0)
	m.awaitQueue(ctx, "mixed", "ticks")
	seen := m.watch(ctx, "results", "error", "ticks")
	m.send(ctx, 0, orders/4)
	begin(present, 1)
	m.send(ctx, orders/4, orders/2)
	begin(present, 2)
	close(stops[0])
	m.send(ctx, orders/2, 3*orders/4)
	begin(earlier, 3)
	m.send(ctx, 3*orders/4, orders)

	want := m.wanted(orders)
	pause := backoff.Backoff{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond}
	for missing := seen.missing(want); len(missing) > 0; missing = seen.missing(want) {
		if pause.Wait(ctx) != nil {
			t.Errorf("%d of %d messages are missing: %q", len(missing), len(want), missing[:min(len(missing), 20)])
			break
		}
	}
	seen.stop()
	for _, stop := range stops[1:] {
		close(stop)
	}
	workers.Wait()
	must(t, m.conn.Close())
	seen.verify(t, want, time.Since(began))
	if m.crashes == 0 {
		t.Error("no message has ended a process, so the quarantine was not shared")
	}
	t.Logf("%d orders, %d messages, %d processes ended", orders, len(want), m.crashes)
}

// wanted returns the messages that orders end with: the queue, the type and the order of each.
func (m *mixture) wanted(orders int) map[string]bool {
	want := map[string]bool{}
	for n := range orders {
		if n%97 == 13 { // its process ends
			want[fmt.Sprint("error Mixed.Task ", n)] = true
			continue
		}
		want[fmt.Sprint("results Mixed.Result ", n)] = true
		if n%10 == 0 { // its job fails
			want[fmt.Sprint("error Mixed.Ship ", n)] = true
		} else {
			want[fmt.Sprint("results Mixed.Shipped ", n)] = true
		}
	}
	return want
}

// awaitQueue opens a connection, creates the queues that the shop sends to, and waits for the
// shop's own.
func (m *mixture) awaitQueue(ctx context.Context, own, also string) {
	conn, err := m.transport().Open(ctx, transport.Env{})
	must(m.t, err)
	m.conn = conn
	must(m.t, conn.(transport.Installer).Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: "results"}, {Name: also}}}))
	pause := backoff.Backoff{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond}
	for {
		if _, err := conn.(transport.Inspector).Inspect(ctx, own, "error"); err == nil {
			return
		}
		must(m.t, pause.Wait(ctx))
	}
}

// A sighting has the ids of the messages that arrived, by queue, type and order.
type sighting struct {
	stop func()

	mu  sync.Mutex // guards the rest
	ids map[string]map[string]bool
	why map[string]string // the error of a failure
}

// watch receives from queues until stop is called.
func (m *mixture) watch(ctx context.Context, queues ...string) *sighting {
	ctx, cancel := context.WithCancel(ctx)
	var receivers sync.WaitGroup
	s := &sighting{ids: map[string]map[string]bool{}, why: map[string]string{}}
	s.stop = func() {
		cancel()
		receivers.Wait()
	}
	for _, queue := range queues {
		r, err := m.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
		must(m.t, err)
		r.Window(100)
		receivers.Go(func() {
			pause := backoff.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
			for ctx.Err() == nil {
				ds, err := r.Receive(ctx, 100)
				if err != nil && pause.Wait(ctx) != nil { // RabbitMQ may refuse a consumer at first (541)
					break
				}
				for _, d := range ds {
					s.add(m.t, queue, d.Message())
					must(m.t, d.Complete(context.WithoutCancel(ctx)))
				}
			}
			must(m.t, r.Close())
		})
	}
	return s
}

func (s *sighting) add(t *testing.T, queue string, message *transport.Message) {
	var body struct{ N int }
	if err := json.NewDecoder(bytes.NewReader(message.Body)).Decode(&body); err != nil {
		t.Errorf("%s has a body that is no JSON: %q", queue, message.Body)
	}
	name, _, _ := strings.Cut(message.Headers.Get(header.EnclosedMessageTypes), ",")
	key := fmt.Sprint(queue, " ", name, " ", body.N)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[key] == nil {
		s.ids[key] = map[string]bool{}
	}
	s.ids[key][message.ID] = true
	s.why[key] = message.Headers.Get(header.ExceptionMessage)
}

// missing returns what has not arrived yet.
func (s *sighting) missing(want map[string]bool) (missing []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range want {
		if s.ids[key] == nil {
			missing = append(missing, key)
		}
	}
	return missing
}

// verify compares what arrived with what was wanted. A row that was sent twice has one id.
func (s *sighting) verify(t *testing.T, want map[string]bool, elapsed time.Duration) {
	t.Helper()
	ticks := 0
	for key, ids := range s.ids {
		switch {
		case strings.HasPrefix(key, "ticks "):
			ticks = len(ids)
		case !want[key]:
			t.Errorf("%s arrived, which does not belong there: %s", key, s.why[key])
		case len(ids) != 1:
			t.Errorf("%s arrived as %d messages, want 1", key, len(ids))
		}
	}
	if seconds := int(elapsed.Seconds()); ticks == 0 || ticks > seconds+2 {
		t.Errorf("the schedule ran %d times in %d s, want at most one run for each second", ticks, seconds)
	}
}
