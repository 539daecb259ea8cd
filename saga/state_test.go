package saga_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// count is another form of the state of the saga "orders".
type count struct {
	Items string
	Total int
}

func counting(_ context.Context, c *saga.Context[count], _ addItem) error {
	c.State.Total++
	return nil
}

func counts() *saga.Saga[count] {
	return saga.New("orders", saga.Start(func(m addItem) string { return m.ID }, counting))
}

func toText(old json.RawMessage) (json.RawMessage, error) {
	var o order
	if err := json.Unmarshal(old, &o); err != nil {
		return nil, err
	}
	return json.Marshal(count{Items: fmt.Sprint(o.Items, " items")})
}

func TestAStateThatDoesNotDecodeFailsTheMessage(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(orders().Handlers()...)
		s.handle(placeOrder{"1"}, addItem{"1"})
		s.stop()
		before := s.record("1")
		s.start(counts().Handlers()...)
		s.handle(addItem{"1"})
		failed := s.failures()
		if len(failed) != 1 || !strings.Contains(failed[0], "stored with version 1, does not decode as version 1") {
			t.Errorf("failures %q", failed)
		}
		if diff := cmp.Diff(before, s.record("1")); diff != "" {
			t.Errorf("the record has changed:\n%s", diff)
		}
	})
}

func TestUpgradesBringAStateToThePresentVersion(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(orders().Handlers()...)
		s.handle(placeOrder{"1"}, addItem{"1"}, placeOrder{"2"})
		s.stop()
		ten := func(old json.RawMessage) (json.RawMessage, error) {
			var c count
			if err := json.Unmarshal(old, &c); err != nil {
				return nil, err
			}
			c.Total += 10
			return json.Marshal(c)
		}
		s.start(counts().Upgrade(2, toText).Upgrade(3, ten).Handlers()...)
		s.handle(addItem{"1"}, addItem{"1"}, addItem{"3"})
		s.wantFailures(0)
		for key, want := range map[string]string{
			"1": `{"Items":"1 items","Total":12}`, "2": `{"Items":0,"Seen":["placed"]}`, "3": `{"Items":"","Total":1}`,
		} {
			if got := string(s.record(key).State); got != want {
				t.Errorf("state of %q is %s, want %s", key, got, want)
			}
		}
		// A process that does not have the upgrades leaves the state as it is.
		s.stop()
		s.start(counts().Upgrade(2, toText).Handlers()...)
		s.handle(addItem{"1"})
		if failed := s.failures(); len(failed) != 1 || !strings.Contains(failed[0], "stored with version 3, and this program has version 2") {
			t.Errorf("failures %q", failed)
		}
		if got := string(s.record("1").State); got != `{"Items":"1 items","Total":12}` {
			t.Errorf("state %s", got)
		}
	})
}

func TestAFailedUpgradeFailsTheMessage(t *testing.T) {
	for name, upgrade := range map[string]func(json.RawMessage) (json.RawMessage, error){
		"an error": func(json.RawMessage) (json.RawMessage, error) { return nil, errNo },
		"no JSON":  func(json.RawMessage) (json.RawMessage, error) { return json.RawMessage("{"), nil },
		"nothing":  func(json.RawMessage) (json.RawMessage, error) { return nil, nil },
		"a panic":  func(json.RawMessage) (json.RawMessage, error) { panic("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			inEachMode(t, func(t *testing.T, s *shop) {
				s.start(orders().Handlers()...)
				s.handle(placeOrder{"1"})
				s.stop()
				before := s.record("1")
				s.start(counts().Upgrade(2, upgrade).Handlers()...)
				s.handle(addItem{"1"})
				s.wantFailures(1)
				if diff := cmp.Diff(before, s.record("1")); diff != "" {
					t.Errorf("the record has changed:\n%s", diff)
				}
			})
		})
	}
}

func TestAStateIsLimited(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		fill := func(_ context.Context, c *orderContext, m placeOrder) error {
			size := map[string]int{"small": 1000, "large": 1 << 20, "huge": 10 << 20}[m.ID]
			c.State.Seen = []string{strings.Repeat("x", size)}
			return nil
		}
		s.start(append(saga.New("orders", saga.Start(placeOrder.key, fill)).Handlers(),
			saga.New("limited", saga.Start(placeOrder.key, place)).StateLimit(10).Handlers()...)...)
		s.handle(placeOrder{"small"})
		failed := s.failures()
		if len(failed) != 1 || !strings.Contains(failed[0], "at most 10 are allowed") {
			t.Fatalf("failures %q", failed)
		}
		s.stop()
		s.start(saga.New("orders", saga.Start(placeOrder.key, fill)).Handlers()...)
		s.handle(placeOrder{"small"}, placeOrder{"large"}, placeOrder{"huge"})
		s.wantFailures(3)
		if stats := s.records(); stats.Active != 1 {
			t.Errorf("records %+v", stats)
		}
		s.stop()
		s.start(saga.New("orders", saga.Start(placeOrder.key, fill)).StateLimit(20 << 20).Handlers()...)
		s.handle(placeOrder{"huge"})
		s.wantFailures(3)
	})
}

// A value that JSON cannot hold is a failure.
func TestAStateThatCannotBeStoredFailsTheMessage(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		odd := func(_ context.Context, c *saga.Context[map[string]float64], _ placeOrder) error {
			c.State = map[string]float64{"f": math.NaN()}
			return nil
		}
		s.start(saga.New("orders", saga.Start(placeOrder.key, odd)).Handlers()...)
		s.handle(placeOrder{"1"})
		if failed := s.failures(); len(failed) != 1 || !strings.Contains(failed[0], "its state cannot be stored") {
			t.Errorf("failures %q", failed)
		}
	})
}

func TestADamagedRecordFailsTheMessage(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		damage := transport.Record{Status: transport.RecordActive, State: []byte(`{}`), Meta: []byte(`{`)}
		s.start(append(orders().Handlers(), saving(damage))...)
		s.handle(placeOrder{"1"}, closeOrder{"1"})
		if failed := s.failures(); len(failed) != 1 || !strings.Contains(failed[0], "the record of the instance is damaged") {
			t.Errorf("failures %q", failed)
		}
	})
}
