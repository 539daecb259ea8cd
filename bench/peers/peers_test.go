package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// few is the number of messages of a run in tests.
const few = 50

// Each scenario checks its own results. The scenarios run in sequence on the same servers, because
// all scenarios use the same names: a run leaves nothing for the next run. The last run repeats the
// first scenario.
func TestEachScenarioRuns(t *testing.T) {
	on := servers{postgres: brokertest.Postgres(t), amqp: brokertest.RabbitMQ(t)}
	for _, s := range append(slices.Clone(scenarios), scenarios[0]) {
		t.Run(s.name, func(t *testing.T) {
			if took, err := s.measure(t.Context(), on, few); err != nil || took <= 0 {
				t.Fatalf("%v, %v", took, err)
			}
		})
	}
}

func TestARunWithoutAllResultsFails(t *testing.T) {
	on := servers{postgres: brokertest.Postgres(t), amqp: brokertest.RabbitMQ(t)}
	for want, check := range map[string]func(context.Context, *run) error{
		"orders: 0, want 1": func(ctx context.Context, r *run) error {
			return r.expectRows(ctx, "orders", 1, `SELECT count(*) FROM orders`)
		},
		"business writes: 0, want 1":                      func(ctx context.Context, r *run) error { return r.expectCharges(ctx, 1) },
		"messages in holdfast-bench-peers.in: 82, want 0": func(ctx context.Context, r *run) error { return r.expectSent(ctx, 0) },
		"0 of 82 messages are done": func(ctx context.Context, r *run) error {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // it waits for nothing else
			defer cancel()
			return r.wait(ctx)
		},
	} {
		s := scenario{name: want, broker: true, run: func(ctx context.Context, r *run) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // what is expected never comes
			defer cancel()
			return check(ctx, r)
		}}
		if _, err := s.measure(t.Context(), on, few); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAResultIsAJSONLine(t *testing.T) {
	t.Setenv("PG_URL", brokertest.Postgres(t))
	var out bytes.Buffer
	if err := command(t.Context(), []string{"-messages", "50", "-rounds", "2", "outbox/tx-none"}, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, line := range lines {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Scenario != "outbox/tx-none" || r.Round != i+1 || r.Messages != few || r.Rate <= 0 {
			t.Errorf("line %d: %s, %v", i, line, err)
		}
	}
	if len(lines) != 2 {
		t.Errorf("%d lines, want 2", len(lines))
	}
}

func TestCommandsThatCannotRunFail(t *testing.T) {
	for want, args := range map[string][]string{
		`there is no scenario "outbox/none"`: {"outbox/none"},
		"no scenario":                        nil,
		"must be at least 1":                 {"-messages", "0", "outbox/tx-none"},
		"PG_URL":                             {"outbox/tx-none"},
	} {
		t.Setenv("PG_URL", "")
		if err := command(t.Context(), args, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

func TestErrorsHaveNoPasswords(t *testing.T) {
	for _, address := range []string{"127.0.0.1:1", "[::1", "host:port"} {
		on := servers{amqp: "amqp://user:secret@" + address + "/", postgres: "postgres://user:secret@" + address + "/db"}
		_, dialed := on.dial()
		_, opened := openDatabase(t.Context(), on)
		for _, err := range []error{dialed, opened} {
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", address, err)
			}
		}
	}
}

func TestAMeterLeavesTheWarmUpOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(2, 3)
		for i := range 5 {
			time.Sleep(time.Duration(i+1) * time.Second)
			m.done()
		}
		if err := m.wait(t.Context()); err != nil || m.elapsed() != 12*time.Second {
			t.Errorf("%v, %v, want 12s", m.elapsed(), err)
		}
	})
}

func TestMessagesHaveTheSizeThatIsCompared(t *testing.T) {
	m, err := first(1234)
	if err != nil {
		t.Fatal(err)
	}
	o, err := decode(m.body)
	if err != nil || len(m.body) != bodySize || len(m.headers) != 12 || o.Account != 234 {
		t.Errorf("%d bytes, %d headers, account %d, %v", len(m.body), len(m.headers), o.Account, err)
	}
}
