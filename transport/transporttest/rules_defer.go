package transporttest

import (
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var deferRules = []rule{
	newRule("defer-due", deferDue,
		"A deferred message is not delivered before it is due, and is delivered then, whole.", deferring),
	newRule("defer-hasten", deferHasten,
		"Hasten has the named deferred messages delivered now and leaves others. It ignores handles of messages that were "+
			"delivered since.", deferring),
}

func deferDue(t *test) {
	c, q, r := t.receiverOf(t.open(), "m")
	d, began := t.one(r, "m"), time.Now()
	const after = 2 * time.Second
	_, err := as[transport.Deferrer](t, d).Defer(t.ctx(), after)
	t.must("Defer", err)
	t.empty(c, q)
	d = t.whole(t.receiver(c, q), message("m"))
	if took := time.Since(began); took < after-clockGrain {
		t.Errorf("it was delivered after %v, want %v", took, after)
	}
	if free := c.Limits().FreeRelease; free && d.Attempt().N != 1 {
		t.Errorf("it has %d attempts, and a release is free", d.Attempt().N)
	}
	t.complete(d)
	t.empty(c, q)
}

func deferHasten(t *test) {
	c, q, r := t.receiverOf(t.open(), "called", "kept")
	var handles []string
	for _, d := range t.take(r, 2) {
		handle, err := as[transport.Deferrer](t, d).Defer(t.ctx(), time.Hour)
		t.must("Defer", err)
		if d.Message().ID == "called" {
			handles = append(handles, handle)
		}
	}
	h := as[transport.Hastener](t, c)
	t.must("Hasten", h.Hasten(t.ctx(), q, handles))
	d := t.one(t.receiver(c, q), "called")
	t.must("Hasten of a message that was delivered", h.Hasten(t.ctx(), q, handles))
	t.complete(d)
	t.must("Hasten of a message that was completed", h.Hasten(t.ctx(), q, handles))
	t.empty(c, q)
}
