package asb_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// A Receive that asks for one message leaves no request open, so no message arrives between two
// calls.
func TestOneMessageAtATimeKeepsTheOrder(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	const n = 20
	var ops []transport.Operation
	for i := range n {
		ops = append(ops, to("in", fmt.Sprint("m-", i)))
	}
	dispatch(t, c, ops...)
	r := receive(t, c, "in")
	for i := range n {
		if got, want := next(t, r).Message().ID, fmt.Sprint("m-", i); got != want {
			t.Errorf("received %s, want %s", got, want)
		}
		if got := ns.Control.State().Counts.Deliveries; got != i+1 {
			t.Fatalf("%d deliveries for %d received messages", got, i+1)
		}
	}
}

// A Receive that gets fewer messages than it asked for leaves a request open. The client library
// releases a message that arrives before the next Receive. It comes after messages that were sent
// later, and its delivery is not counted.
func TestMessagesBetweenReceivesComeAgain(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	r := receive(t, c, "in")
	ns.Control.Set(brokertest.ServiceBusFaults{Delay: 50 * time.Millisecond}) // a release takes so long
	var sent, came []string
	for ctx := within(t); ns.Control.State().Counts.Settles == 0; { // no message is settled but by the library
		var ops []transport.Operation
		for range 3 {
			sent = append(sent, fmt.Sprintf("m-%03d", len(sent)))
			ops = append(ops, to("in", sent[len(sent)-1]))
		}
		dispatch(t, c, ops...)
		for len(came) < len(sent) {
			ds, err := r.Receive(ctx, 10)
			if err != nil {
				t.Fatalf("after %d of %d messages: %v", len(came), len(sent), err)
			}
			for _, d := range ds {
				if got := d.Attempt().N; got != 1 {
					t.Errorf("%s is in attempt %d, want 1", d.Message().ID, got)
				}
			}
			came = append(came, idsOf(ds)...)
		}
	}
	t.Logf("received %q", came)
	slices.Sort(came)
	if !slices.Equal(came, sent) {
		t.Errorf("received %q, want %q", came, sent)
	}
}
