package transporttest

import (
	"errors"
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

var removeRules = []rule{
	newRule("verify-plan", verifyPlan,
		"Verify reports each missing queue of a plan and creates none. After Install has created the plan, Verify reports "+
			"nothing.", installing, verifying),
	newRule("verify-subscriptions", verifySubscriptions,
		"VerifySubscriptions reports a type to which a queue is not subscribed. After Subscribe it reports "+
			"nothing.", publishing, subscribed),
	newRule("remove-queues", removeQueues,
		"Remove deletes the named queues, and sending to them fails with ErrNoQueue. Other queues keep their messages and "+
			"subscriptions. Removing a queue that does not exist is not an error.", removing),
}

func verifyPlan(t *test) {
	c := t.open()
	v := as[transport.Verifier](t, c)
	plan := transport.Plan{Queues: []transport.Queue{{Name: t.name("own")}, {Name: t.name("shared"), Shared: true}}}
	found := t.differences(v.Verify(t.ctx(), plan))
	for _, q := range plan.Queues {
		if !slices.ContainsFunc(found, func(f transport.Finding) bool {
			return f.State == transport.Missing && f.Name == q.Name
		}) {
			t.Errorf("queue %q is missing, and Verify reports %v", q.Name, found)
		}
		t.fails("Dispatch to a queue that was verified", dispatch(t.ctx(), c, to(q.Name, "m")), transport.ErrNoQueue)
	}
	t.must("Install", as[transport.Installer](t, c).Install(t.ctx(), plan))
	if found := t.differences(v.Verify(t.ctx(), plan)); len(found) > 0 {
		t.Errorf("after Install Verify reports %v", found)
	}
}

func verifySubscriptions(t *test) {
	c := t.open()
	v := as[transport.SubscriptionVerifier](t, c)
	present, missing := t.kind("Ordered"), t.kind("Shipped")
	q := t.subscriber(c, "in", present)
	if found := t.differences(v.VerifySubscriptions(t.ctx(), q, []string{present})); len(found) > 0 {
		t.Errorf("after Subscribe VerifySubscriptions reports %v", found)
	}
	found := t.differences(v.VerifySubscriptions(t.ctx(), q, []string{present, missing}))
	if len(found) == 0 || found[0].State != transport.Missing {
		t.Errorf("a subscription is missing, and VerifySubscriptions reports %v", found)
	}
}

// differences returns the findings without settings that could not be read.
func (t *test) differences(found []transport.Finding, err error) []transport.Finding {
	t.Helper()
	t.must("verify", err)
	return slices.DeleteFunc(found, func(f transport.Finding) bool { return f.State == transport.Unread })
}

func removeQueues(t *test) {
	c := t.open()
	first, second, kept := t.queue(c, "first"), t.queue(c, "second"), t.queue(c, "kept")
	t.dispatch(c, to(first, "m"), to(second, "m"), to(kept, "m"))
	want := []string{"m"}
	var events []transport.Operation
	if is[transport.Subscriber](c) {
		kind := t.kind("Ordered")
		t.subscribe(c, first, kind)
		t.subscribe(c, kept, kind)
		events, want = append(events, publish("event", kind)), append(want, "event")
	}
	for range 2 {
		t.must("Remove", as[transport.Remover](t, c).Remove(t.ctx(), first, t.name("missing"), second))
	}
	for _, q := range []string{first, second} {
		t.eventually("a send to a removed queue fails with ErrNoQueue", func() bool {
			return errors.Is(dispatch(t.ctx(), c, to(q, "m")), transport.ErrNoQueue)
		})
	}
	t.dispatch(c, events...)
	t.holds(c, kept, want...)
}
