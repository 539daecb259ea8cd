package tablequeue

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// required is a dialect with the required parts only. Its Flush fails with errLock while locked.
type required struct {
	*fake
	locked bool
}

func newRequired() *required {
	f := &required{fake: newFake("e", "e.forwards", "in", "in.forwards", "out", "other")}
	f.onFlush = func(units []*Unit) error {
		if f.locked && len(destinations(units...)) > 0 {
			return errLock
		}
		return nil
	}
	return f
}

func (f *required) parts() Store {
	s := f.fake.parts()
	s.Classify, s.Orphaner = f.Classify, nil
	return s
}

func (f *required) Classify(err error) Class {
	if errors.Is(err, errLock) {
		return Locked
	}
	return f.fake.Classify(err)
}

// The comments of the fields of Store say what the engine does without each part.
func TestEngineWithoutOptionalParts(t *testing.T) {
	for name, check := range map[string]func(t *testing.T, f *required, c *Conn){
		"names":        withoutNames,
		"claims":       withoutOrphaner,
		"a lock":       withoutLocks,
		"records":      withoutRecords,
		"foreign":      withoutForeign,
		"examinations": withoutExaminations,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newRequired()
				c := open(t, f)
				check(t, f, c)
				_ = c.Close()
			})
		})
	}
}

func withoutNames(t *testing.T, _ *required, c *Conn) {
	receiverOf(t, c, "in")
	if got := c.Address("in@app"); got != "in@app" {
		t.Errorf("the address is %q", got)
	}
	if got := c.ShortName("in@app"); got != "in@app" {
		t.Errorf("the short name is %q", got)
	}
	if ahead := time.Until(c.Now()); ahead != 0 {
		t.Errorf("the clock of the database is ahead by %v", ahead)
	}
}

func withoutOrphaner(t *testing.T, f *required, c *Conn) {
	send(t, c, op("in", "1"))
	r := receiverOf(t, c, "in")
	f.afterClaim = func() error { return errUnknown }
	_, err := r.Receive(t.Context(), 1)
	isErr(t, err, errUnknown)
	f.afterClaim = nil
	began := time.Now()
	one(t, r)
	if waited := time.Since(began); waited < c.cfg.Lease {
		t.Errorf("the row was visible after %v, want the end of the lease", waited)
	}
}

func withoutLocks(t *testing.T, f *required, c *Conn) {
	ds := claimed(t, c, 2)
	f.locked = true
	isBusy(t, ds[0].(transport.Completer).CompleteWith(
		t.Context(), []transport.Operation{op("out", "x"), op("other", "x")}), "in")
	isBusy(t, ds[1].(transport.Completer).CompleteWith(
		t.Context(), []transport.Operation{op("out", "x")}), "out")
	for i, busy := range []string{"in", "out"} {
		if err := ds[i].(transport.Postponer).Postpone(t.Context(), busy); err != nil {
			t.Error(err)
		}
	}
	f.locked = false
	r := receiverOf(t, c, "in")
	began := time.Now()
	one(t, r) // for which no queue is refused
	one(t, r)
	if waited := time.Since(began).Round(time.Second); waited != postponedFor {
		t.Errorf("a message waited for %v, want %v: no part makes its row visible", waited, postponedFor)
	}
	if err := c.Hasten(t.Context(), "in", []string{"1"}); err != nil {
		t.Error(err)
	}
}

func withoutRecords(t *testing.T, _ *required, c *Conn) {
	_, err := c.InspectRecords(t.Context(), "kind")
	isErr(t, err, errNoRecords)
	tx, err := c.BeginStore(t.Context(), transport.OutboxEntry{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.(transport.StateStore).Load(t.Context(), transport.RecordID{}, nil)
	isErr(t, err, errNoRecords)
	if tx.(transport.OutageDetector).Outage(t.Context(), errAway) {
		t.Error("an outage was detected")
	}
}

func withoutForeign(t *testing.T, f *required, c *Conn) {
	m := op("in", "x")
	m.Message.Headers.Set(header.ForwardDestination, "elsewhere")
	send(t, c, m)
	d := one(t, receiverOf(t, c, "in"))
	if ops := d.(transport.Relayer).Relay(); ops != nil {
		t.Errorf("%d messages are forwarded", len(ops))
	}
	if got := d.Message().Headers.Get(header.ForwardDestination); got != "elsewhere" {
		t.Errorf("the destination is %q", got)
	}
	receiverOf(t, c, "e") // of the endpoint, without which there are no satellites
	if all, err := c.Satellites(t.Context()); len(all) > 0 || err != nil {
		t.Errorf("%d satellites, %v", len(all), err)
	}
	_, err := c.HandOver(t.Context(), "in", nil)
	isErr(t, err, errNoHandOver)
	if err := c.Remove(t.Context(), "in"); err != nil {
		t.Error(err)
	}
	if err := f.Exists(t.Context(), "in.forwards"); err != nil {
		t.Errorf("a queue beside the removed one: %v", err)
	}
}

func withoutExaminations(t *testing.T, _ *required, c *Conn) {
	receiverOf(t, c, "in")
	found, err := c.Verify(t.Context(), transport.Plan{
		Queues: []transport.Queue{{Name: "in"}, {Name: "gone"}},
	})
	want := []transport.Finding{{Kind: "queue", Name: "gone", State: transport.Missing}}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("findings %+v, %v, want %+v", found, err, want)
	}
	time.Sleep(sweepEvery + time.Second)
	if got := c.Warnings(); len(got) > 0 {
		t.Errorf("warnings %q", got)
	}
}
