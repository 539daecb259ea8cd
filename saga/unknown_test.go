package saga_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/saga"
)

type (
	// lineOfOrder is a part of newOrder, of which an older program knows the number.
	lineOfOrder struct {
		N    int
		Note string `json:",omitempty"`
	}
	// newOrder is the state of the saga "orders" in a newer program.
	newOrder struct {
		Items   int
		Voucher string              `json:",omitempty"`
		Lines   []lineOfOrder       `json:",omitempty"`
		Seen    []string            `json:",omitempty"`
		Tags    map[string][]string `json:",omitempty"`
	}
	// oldLine and oldOrder are the same in an older program.
	oldLine  struct{ N int }
	oldOrder struct {
		Items int
		Lines []oldLine `json:",omitempty"`
		Seen  []string  `json:",omitempty"`
	}
)

// newOrders is the saga "orders" of the newer program.
func newOrders() *saga.Saga[newOrder] {
	begin := func(_ context.Context, c *saga.Context[newOrder], _ placeOrder) error {
		c.State = newOrder{
			Voucher: "spring", Seen: []string{"new"}, Lines: []lineOfOrder{{1, "gift"}, {2, "fragile"}}, Tags: map[string][]string{"a": {"b"}},
		}
		return nil
	}
	use := func(_ context.Context, c *saga.Context[newOrder], _ addItem) error {
		c.State.Items++
		c.State.Voucher = ""
		return nil
	}
	return saga.New("orders", saga.Start(placeOrder.key, begin), saga.On(addKey, use))
}

// oldOrders is the saga "orders" of the older program.
func oldOrders() *saga.Saga[oldOrder] {
	change := func(_ context.Context, c *saga.Context[oldOrder], _ addItem) error {
		c.State.Items += 10
		c.State.Seen = nil // cleared: it must not come back
		c.State.Lines = append(c.State.Lines, oldLine{3})
		return nil
	}
	leave := func(context.Context, *saga.Context[oldOrder], closeOrder) error { return nil }
	return saga.New("orders", saga.Start(placeOrder.key, func(context.Context, *saga.Context[oldOrder], placeOrder) error { return nil }),
		saga.On(addKey, change), saga.On(closeKey, leave))
}

// In a rolling deployment both programs change one instance, and none loses what the other one has
// stored.
func TestAnOlderProgramKeepsTheFieldsOfANewerOne(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(newOrders().Handlers()...)
		s.handle(placeOrder{"1"})
		s.stop()
		stored := s.record("1")

		s.start(oldOrders().Handlers()...)
		s.handle(closeOrder{"1"}) // changes nothing, so nothing is stored
		if now := s.record("1"); now.Version != stored.Version {
			t.Errorf("an unchanged state was stored: version %d after %d", now.Version, stored.Version)
		}
		s.handle(addItem{"1"})
		want := `{"Items":10,"Voucher":"spring","Lines":[{"N":1,"Note":"gift"},{"N":2,"Note":"fragile"},{"N":3}],"Tags":{"a":["b"]}}`
		if got := string(s.record("1").State); got != want {
			t.Errorf("the older program stored\n%s, want\n%s", got, want)
		}
		if state := string(s.invocations(1)[0].State); state != want {
			t.Errorf("the invocation has the state %s", state)
		}
		s.stop()

		s.start(newOrders().Handlers()...)
		s.handle(addItem{"1"}) // clears the voucher
		s.stop()
		s.start(oldOrders().Handlers()...)
		s.handle(addItem{"1"})
		s.wantFailures(0)
		if got := string(s.record("1").State); strings.Contains(got, "Voucher") || !strings.Contains(got, `"Items":21,`) || !strings.Contains(got, `"Tags"`) {
			t.Errorf("after both programs the state is %s", got)
		}
	})
}

// An Upgrade decides on the members of a state: what it removes is gone.
func TestUnknownMembersAreThoseOfTheUpgradedText(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(newOrders().Handlers()...)
		s.handle(placeOrder{"1"})
		s.stop()
		upgrade := func(json.RawMessage) (json.RawMessage, error) {
			return json.RawMessage(`{ "Items": 5, "Later": true }`), nil
		}
		s.start(oldOrders().Upgrade(2, upgrade).Handlers()...)
		s.handle(addItem{"1"})
		s.wantFailures(0)
		if got := string(s.record("1").State); got != `{"Items":15,"Later":true,"Lines":[{"N":3}]}` {
			t.Errorf("the state is %s", got)
		}
	})
}

func TestTheLimitOfAStateCountsUnknownMembers(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(newOrders().Handlers()...)
		s.handle(placeOrder{"1"})
		s.stop()
		s.start(oldOrders().StateLimit(60).Handlers()...)
		s.handle(addItem{"1"})
		if failed := s.failures(); len(failed) != 1 || !strings.Contains(failed[0], "at most 60 are allowed") {
			t.Errorf("failures %q", failed)
		}
	})
}
