package transporttest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// restartable opens a transport whose broker can be restarted, with a longer timeout for the start.
func (t *test) restartable() (c transport.Conn, restart func()) {
	t.Helper()
	tr, again := t.harness.Restart(t.TB)
	t.tr, t.until = tr, time.Now().Add(5*time.Minute)
	c = t.open()
	if lease := c.Limits().Lease; lease > longestLease {
		t.Fatalf("Harness.Restart has leases of %v: what is out would come again after the rule's end", lease)
	}
	return c, again
}

func faultRestart(t *test) {
	c, restart := t.restartable()
	want := []string{"held", "waiting"}
	_, q, r := t.receiverOf(c, want...)
	if c.Limits().MaxDelay > 0 {
		op, _ := delayed(to(q, "delayed"))
		t.dispatch(c, op)
		want = append(want, "delayed")
	}
	t.one(r, "held")
	restart()
	t.arrive(r, want, map[string]int{})
}

func faultRestartLoad(t *test) {
	c, restart := t.restartable()
	in, out := t.queue(c, "in"), t.queue(c, "out")
	r := t.receiver(c, out)
	p := t.forward(c, in, out)
	all := ids("m", 400)
	sent := make(chan map[string]bool, 1)
	ctx, giveUp := context.WithCancel(t.ctx())
	var sending sync.WaitGroup
	sending.Go(func() { sent <- t.sendUntilAccepted(ctx, c, in, all) })
	t.Cleanup(sending.Wait)
	t.Cleanup(giveUp) // where the rule has failed
	times := map[string]int{}
	t.arrive(r, all[:100], times)
	restart()
	t.arrive(r, all, times)
	t.stop(p)
	maybe := await(t, "all is sent", sent)
	for id, n := range times {
		if n > 1 && c.Limits().Atomic && !maybe[id] {
			t.Errorf("%s was forwarded %d times", id, n)
		}
	}
}

// sendUntilAccepted sends one message after the other, each until that succeeds, and returns
// those that may have been sent before.
func (t *test) sendUntilAccepted(ctx context.Context, c transport.Conn, queue string, ids []string) map[string]bool {
	unsure := map[string]bool{}
	for _, id := range ids {
		t.pass(time.Millisecond) // so that there are some left whenever the broker ends
		for ctx.Err() == nil {
			err := dispatch(ctx, c, to(queue, id))
			if err == nil {
				break
			}
			if errors.Is(err, transport.ErrOutcomeUnknown) {
				unsure[id] = true
			}
			t.pass(10 * time.Millisecond)
		}
	}
	return unsure
}

// arrive receives until every one of want was received, repeating failed calls, and counts how
// often each was completed.
func (t *test) arrive(r transport.Receiver, want []string, times map[string]int) {
	t.Helper()
	ctx := t.ctx()
	missing := slices.Clone(want)
	for len(missing) > 0 {
		ds, err := r.Receive(ctx, 20)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d messages are lost: %s (%v)", len(missing), len(want), missing, err)
		}
		if err != nil {
			t.pass(10 * time.Millisecond)
		}
		for _, d := range ds {
			id := d.Message().ID
			if d.Complete(ctx) == nil {
				times[id]++
			} else { // it is delivered again, unless the driver recognizes it as completed
				times[id] += 0
			}
		}
		missing = slices.DeleteFunc(missing, func(id string) bool { _, came := times[id]; return came })
	}
}
