package endpoint_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/histories"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

const (
	moodQueues  = 20
	moodPeriods = 4
	moodBurst   = 50 // messages of a period, at 100 a second
)

// Whatever up to half of the destinations do, the error queue and the audit queue among them: a
// message for one that is well arrives within 5 s, none is forgotten, a silent destination gets few
// copies, and Health names each that takes none.
func TestMoodsOfDestinations(t *testing.T) {
	histories.Run(t, histories.Count{Short: 50, Test: 400, Soak: 100_000}, func(t *testing.T, rnd *rand.Rand) {
		newHistory(t, rnd).run()
	})
}

// history is a case: periods in which each destination has one mood.
type history struct {
	*testing.T
	random   *rand.Rand
	broker   *moodyBroker
	db       *inmemory.Transport
	endpoint *harness.Running
	queues   []string

	prompt map[string]time.Time // when the messages were sent that arrive within 5 s
	sent   map[string]string    // destination by message
	unwell map[string]int       // periods in which a queue was silent
	odd    map[string]bool      // queues that were anything but well, slow or silent

	mu      sync.Mutex // guards arrived
	arrived map[string]time.Time
}

func newHistory(t *testing.T, rnd *rand.Rand) *history {
	h := &history{
		T: t, random: rnd,
		broker: newMoody(&inmemory.Transport{}), db: &inmemory.Transport{Lease: 30 * time.Second},
		prompt: map[string]time.Time{}, sent: map[string]string{}, unwell: map[string]int{}, odd: map[string]bool{},
		arrived: map[string]time.Time{},
	}
	for i := range moodQueues {
		h.queues = append(h.queues, fmt.Sprint("d", i))
	}
	h.broker.CreateQueues(h.queues...)
	h.broker.arrived = h.note
	cfg := harness.Sales(h.broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
		queue, _, _ := strings.Cut(o.ID, "/")
		return s.Send(ctx, harness.ShipOrder(o), endpoint.To(queue), endpoint.MessageID(o.ID))
	}))
	cfg.Outbox, cfg.AuditQueue, cfg.Logger = h.db, "audit", slog.New(slog.NewTextHandler(new(logged), nil))
	h.endpoint = harness.Start(t, cfg)
	return h
}

func (h *history) note(op transport.Operation) {
	var o harness.ShipOrder
	if json.Unmarshal(op.Message.Body, &o) != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	what := op.Queue
	if what == "error" {
		what, _, _ = strings.Cut(o.ID, "/")
		if op.Message.ID != o.ID { // of an audit copy
			what = "audit"
		}
	}
	if key := what + " " + o.ID; h.arrived[key].IsZero() {
		h.arrived[key] = time.Now()
	}
}

func (h *history) run() {
	for range moodPeriods {
		h.period()
	}
	for _, q := range append(h.queues, "error", "audit") {
		h.broker.set(q, wellMood)
	}
	pass(13 * time.Minute)
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, queue := range h.sent {
		if h.arrived[queue+" "+id].IsZero() {
			h.Errorf("message %s has not arrived", id)
		}
		if h.arrived["audit "+id].IsZero() {
			h.Errorf("the audit copy of %s has not arrived", id)
		}
		if n, most := h.broker.sent(queue, id), 2+5*h.unwell[queue]; !h.odd[queue] && n > most {
			h.Errorf("message %s was sent %d times, want at most %d", id, n, most)
		}
	}
	for id, sent := range h.prompt {
		if took := h.arrived[h.sent[id]+" "+id].Sub(sent); took > 5*time.Second {
			h.Errorf("message %s for a destination that is well took %v", id, took)
		}
	}
	if w := h.endpoint.Health().Outbox.Waiting; w != nil {
		h.Errorf("Health has %+v at the end", w)
	}
	if n := len(h.db.Messages("sales.outbox")); n > 0 {
		h.Errorf("%d rows are left", n)
	}
}

// period gives each destination a mood, and sends messages.
func (h *history) period() {
	share := h.random.Float64() / 2 // of destinations that are unwell
	now := map[string]mood{}
	for _, q := range append(h.queues, "error", "audit") {
		m := wellMood
		if h.random.Float64() < share {
			m = 1 + mood(h.random.IntN(int(moods)-1))
		}
		now[q] = m
		h.broker.set(q, m)
		switch m {
		case wellMood, slowMood:
		case silentMood:
			h.unwell[q]++
		default:
			h.odd[q] = true
		}
	}
	used := map[string]bool{}
	for range moodBurst {
		queue := h.queues[h.random.IntN(len(h.queues))]
		id := fmt.Sprintf("%s/%d", queue, len(h.sent))
		h.sent[id], used[queue] = queue, true
		if now[queue] == wellMood && waitingFor(h.endpoint, queue) == nil {
			h.prompt[id] = time.Now()
		}
		h.endpoint.MustSend(harness.PlaceOrder{ID: id})
		time.Sleep(10 * time.Millisecond)
	}
	pass(12*time.Second + time.Duration(h.random.Int64N(int64(time.Minute))))
	for queue := range used {
		takesNone := now[queue] == silentMood || now[queue] == unreachableMood || now[queue] == busyMood || now[queue] == fullMood
		if w := waitingFor(h.endpoint, queue); takesNone && (w == nil || w.Problem == "") {
			h.Errorf("%s is %v, and Health has %+v", queue, now[queue], w)
		}
	}
}
