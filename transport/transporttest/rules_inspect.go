package transporttest

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var inspectRules = []rule{
	newRule("inspect", inspect,
		"Inspect returns the numbers of ready, unsettled and delayed messages of a queue, or -1 for an unknown "+
			"number.", inspecting),
	newRule("inspect-no-queue", inspectNoQueue,
		"Inspect of a queue that does not exist fails with ErrNoQueue.", inspecting),
	newRule("install-again", installAgain,
		"Install does not change an existing queue: its messages stay in it.", installing),
	newRule("install-at-once", installAtOnce, "Several connections can install the same plan concurrently.", installing),
	newRule("install-names", installNames,
		"Queues can have the names of endpoints, with dots, hyphens, underscores and capitals. Names that differ in such a "+
			"character name different queues.", installing),
	newRule("address-forms", addressForms,
		"A queue has one address and one short name: Address and ShortName return them for the name, for the address and for "+
			"the short name, and return other text without a panic.", addressing),
	newRule("address-reaches", addressReaches,
		"Every form of a queue's address is that queue: messages are sent to it, received from it and counted in it by each.",
		addressing),
}

func inspect(t *test) {
	c, q := t.queueOf(t.open(), ids("m", 5)...)
	held := t.take(t.receiverWith(c, q, 2), 2)
	want := transport.QueueStats{Ready: 3, Unsettled: 2}
	if c.Limits().MaxDelay > 0 {
		op := to(q, "delayed")
		op.After = min(time.Hour, c.Limits().MaxDelay)
		t.dispatch(c, op)
		want.Delayed = 1
	}
	t.eventually("the counts are right", func() bool {
		stats, err := as[transport.Inspector](t, c).Inspect(t.ctx(), q)
		if err != nil || len(stats) != 1 || stats[0].Name != q {
			t.Fatalf("Inspect of one queue: %+v, %v", stats, err)
		}
		s := stats[0]
		return told(s.Ready, want.Ready) && told(s.Unsettled, want.Unsettled) && told(s.Delayed, want.Delayed)
	})
	t.complete(held...)
}

func told(got, want int64) bool { return got == want || got == -1 }

func inspectNoQueue(t *test) {
	c, q := t.queueOf(t.open())
	_, err := as[transport.Inspector](t, c).Inspect(t.ctx(), q, t.name("missing"))
	t.fails("Inspect", err, transport.ErrNoQueue)
}

func installAgain(t *test) {
	c, q := t.queueOf(t.open(), "m")
	t.install(c, transport.Queue{Name: q})
	t.holds(c, q, "m")
}

func installAtOnce(t *test) {
	cs := []transport.Conn{t.open(), t.open(), t.open()}
	ctx := t.ctx()
	plan := transport.Plan{Types: [][]string{{t.kind("Ordered"), t.kind("IEvent")}}}
	for _, s := range []string{"a", "b", "c"} {
		plan.Queues = append(plan.Queues, transport.Queue{Name: t.name(s), Shared: s == "c"})
	}
	var wg sync.WaitGroup
	for _, c := range cs {
		for range 2 {
			wg.Go(func() { t.ok("Install", as[transport.Installer](t, c).Install(ctx, plan)) })
		}
	}
	wg.Wait()
	for i, q := range plan.Queues {
		t.send(cs[i], q.Name, "m")
		t.holds(cs[0], q.Name, "m")
	}
}

func installNames(t *test) {
	c := t.open()
	names := []string{
		t.queue(c, "Shop.Sales"), t.queue(c, "Shop.Sales-Instance_1"), t.queue(c, "shop.sales"), t.queue(c, "1st"),
	}
	for _, q := range names {
		t.send(c, q, "to "+q)
	}
	for _, q := range names {
		t.holds(c, q, "to "+q)
	}
}
