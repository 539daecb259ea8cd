package asb_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// A delivery that ends with its process is counted unless locks end with their link.
func TestAttemptsAreExactWhereLocksOutliveTheirLink(t *testing.T) {
	t.Parallel()
	for profile, exact := range map[brokertest.ServiceBusProfile]bool{
		brokertest.ServiceBusAzure: true, brokertest.ServiceBusLinksUncounted: false, brokertest.ServiceBusLinksCounted: false,
	} {
		t.Run(string(profile), func(t *testing.T) {
			ns := brokertest.OwnServiceBusOf(t, profile)
			c := open(t, on(ns))
			install(t, c, "in")
			const n = 20
			for i := range n {
				dispatch(t, c, to("in", fmt.Sprint("m-", i)))
			}
			got := map[string]bool{}
			r := receive(t, c, "in")
			for _, d := range nextN(t, r, n) {
				if a := d.Attempt(); a.Exact != exact || exact && a.N != 1 {
					t.Errorf("%s is attempt %+v", d.Message().ID, a)
				}
				got[d.Message().ID] = true
				must(t, d.Complete(within(t)))
			}
			if len(got) != n {
				t.Errorf("%d messages came, want %d", len(got), n)
			}
			nothing(t, r)
		})
	}
}

func TestLocksThatEndWithTheirLinkLoseNothing(t *testing.T) {
	t.Parallel()
	for _, profile := range []brokertest.ServiceBusProfile{brokertest.ServiceBusLinksUncounted, brokertest.ServiceBusLinksCounted} {
		t.Run(string(profile), func(t *testing.T) {
			ns := brokertest.OwnServiceBusOf(t, profile)
			c := open(t, on(ns))
			install(t, c, "in")
			dispatch(t, c, to("in", "m-1"), to("in", "m-2"), to("in", "m-3"))
			r := receive(t, c, "in")
			ds := nextN(t, r, 3)
			ns.Control.Drop()
			for _, d := range ds {
				if err := d.Complete(within(t)); err == nil {
					t.Errorf("%s was completed under a lock that has ended", d.Message().ID)
				}
			}
			for _, d := range nextN(t, r, 3) {
				must(t, d.Complete(within(t)))
			}
			nothing(t, r)
		})
	}
}

// Deliveries of dead letters are not counted, and no dead letter is dead-lettered again.
func TestDeadLettersAreNotCounted(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	dispatch(t, c, to("in", "m"))
	must(t, next(t, receive(t, c, "in")).(transport.DeadLetterer).DeadLetter(within(t), "it is of no use"))
	dead := next(t, receive(t, c, "in/$DeadLetterQueue"))
	if dead.Attempt().Exact {
		t.Error("the count of a dead letter is said to be exact")
	}
	before := ns.Control.State().Counts
	if err := dead.(transport.DeadLetterer).DeadLetter(within(t), "again"); err == nil {
		t.Error("a dead letter was dead-lettered")
	}
	if after := ns.Control.State().Counts; after.Settles != before.Settles || after.Management != before.Management {
		t.Error("the service was asked to dead-letter a dead letter")
	}
	must(t, dead.Complete(within(t)))
}

func TestAPartitionedQueueIsNotBrowsed(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.Partitioned = true
	c := open(t, tr)
	install(t, c, "in")
	if cursor, err := c.(transport.Browser).Browse(within(t), "in"); err == nil { // as with messages of the first partition only
		must(t, cursor.Close())
		t.Error("an empty one was browsed")
	} else {
		says(t, err, "-----", "partitioned")
	}
	const n = 40
	fill(t, c, "in", n)
	if cursor, err := c.(transport.Browser).Browse(within(t), "in"); err == nil {
		must(t, cursor.Close())
		t.Error("it was browsed")
	} else {
		says(t, err, "-", "partitioned")
	}
	if removed, err := c.(transport.Purger).Purge(within(t), "in"); err == nil || removed != 0 {
		t.Errorf("Purge = %d, %v", removed, err)
	}
	r := receive(t, c, "in")
	for _, d := range nextN(t, r, n) {
		must(t, d.Complete(within(t)))
	}
	nothing(t, r)
	must(t, r.Close())
}

// The pump bounds the bytes of received messages: the driver must not ask the service for more
// messages than the limit.
func TestAReceiveAsksForNoMoreThanItsLimit(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	fill(t, c, "in", 100)
	r := receive(t, c, "in")
	held := 0
	for range 6 {
		ds, err := r.Receive(within(t), 3)
		if err != nil {
			t.Fatal(err)
		}
		held += len(ds)
		if got := ns.Control.State().Counts.Deliveries; got > held+2 || len(ds) > 3 {
			t.Errorf("%d deliveries, of which %d were received: a limit of 3 was passed", got, held)
		}
	}
}
