package tablequeue

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// openDirect returns a Conn with leased inserts, and a receiver of the queue "a" with a window of
// 3.
func openDirect(t *testing.T, f *fake) (*Conn, transport.Receiver) {
	t.Helper()
	c := Open(f.parts(), Config{LeasedInserts: true, Lease: 10 * time.Second})
	t.Cleanup(func() { _ = c.Close() })
	r := receiverOf(t, c, "a")
	r.Window(3)
	return c, r
}

// store stores messages for the queue "a", each in an entry of its own.
func store(t *testing.T, c *Conn, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := c.Store(t.Context(), transport.OutboxEntry{Ops: []transport.Operation{op("a", id)}}); err != nil {
			t.Error(err)
		}
	}
}

// received returns the ids of messages that one Receive returns, and the deliveries.
func received(t *testing.T, r transport.Receiver) (ids []string, ds []transport.Delivery) {
	t.Helper()
	ds, err := r.Receive(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		ids = append(ids, d.Message().ID)
	}
	return ids, ds
}

func TestStoredRowsAreReceivedWithoutAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		go store(t, c, "1", "2")
		_, ds := received(t, r) // the first Receive claims, and waits
		synctest.Wait()
		claims := f.callsOf("claim")
		go func() {
			tx, err := c.BeginStore(t.Context(), entry(keyOf(1), op("a", "3")))
			if err == nil {
				err = tx.Complete(t.Context(), nil)
			}
			if err != nil {
				t.Error(err)
			}
		}()
		for len(ds) < 3 {
			_, more := received(t, r)
			ds = append(ds, more...)
		}
		if n := f.callsOf("claim"); n != claims {
			t.Errorf("%d claims, want none", n-claims)
		}
		for _, d := range ds {
			m := d.Message()
			if d.Attempt() != (transport.Attempt{N: 1, Exact: true}) || m.NativeID == "" || string(m.Body) != m.ID || m.Headers.Get("k") != m.ID {
				t.Errorf("received %+v, attempt %+v", m, d.Attempt())
			}
			if err := d.Complete(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if len(f.rows["a"]) > 0 {
			t.Errorf("%d rows are left", len(f.rows["a"]))
		}
	})
}

func TestRowsWithoutRoomAreClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		store(t, c, "1", "2", "3", "4", "5")
		var got []string
		for len(got) < 5 {
			ids, _ := received(t, r)
			got = append(got, ids...)
		}
		slices.Sort(got)
		if want := []string{"1", "2", "3", "4", "5"}; !slices.Equal(got, want) {
			t.Errorf("received %v, want %v", got, want)
		}
	})
}

func TestNothingIsDirectWithoutAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		r.Window(0)
		store(t, c, "1")
		if lease := f.rows["a"][0].lease; lease != 0 {
			t.Error("the row is leased")
		}
	})
}

// Room for a row that is not stored is free again.
func TestARefusedStoreTakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		f.onFlush = func([]*Unit) error { return errRefused }
		for range 10 {
			if err := c.Store(t.Context(), entry(keyOf(1), op("a", "1"))); err == nil {
				t.Fatal("stored")
			}
		}
		f.onFlush = nil
		for n := range 10 { // the first is stored
			if err := c.Store(t.Context(), entry(keyOf(1), op("a", "1"))); (err == nil) != (n == 0) {
				t.Fatal(err)
			}
		}
		store(t, c, "2", "3")
		for _, row := range f.rows["a"] {
			if row.lease == 0 {
				t.Errorf("row %s found no room", row.ID)
			}
		}
		if ids, _ := received(t, r); len(ids) != 3 {
			t.Errorf("received %v, want 3", ids)
		}
		store(t, c, "4", "5", "6")
		if ids, _ := received(t, r); len(ids) != 3 {
			t.Errorf("received %v, want 3", ids)
		}
	})
}

// The outcome of a store is unknown: its row may be leased. It is claimed when the lease ends.
func TestARowOfUnknownOutcomeIsClaimedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		f.onFlush = func(units []*Unit) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, u := range units {
				f.apply(u)
			}
			return errUnknown
		}
		err := c.Store(t.Context(), transport.OutboxEntry{Ops: []transport.Operation{op("a", "1")}})
		if !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Fatalf("got %v", err)
		}
		f.onFlush = nil
		began := time.Now()
		ids, ds := received(t, r)
		if took := time.Since(began); len(ids) != 1 || took < 10*time.Second || took > 12*time.Second {
			t.Errorf("received %v after %v", ids, took)
		}
		if n := ds[0].Attempt().N; n != 2 {
			t.Errorf("delivery count %d, want 2", n)
		}
	})
}

func TestOldDirectRowsAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		store(t, c, "1", "2")
		time.Sleep(6 * time.Second) // more than half a lease
		store(t, c, "3")
		var got []string
		for len(got) < 3 {
			ids, ds := received(t, r)
			got = append(got, ids...)
			for _, d := range ds {
				if n := d.Attempt().N; n != 1 {
					t.Errorf("message %s has delivery count %d, want 1", d.Message().ID, n)
				}
			}
		}
		if n := f.callsOf("claim"); n == 0 {
			t.Error("the old rows were not claimed")
		}
	})
}

// Rows of other processes do not wait for ever behind direct ones.
func TestOtherRowsAreClaimedBesideDirectOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		f.insert(&Row{Queue: "a", ID: "other", Headers: []byte("{}")}) // no notification
		began := time.Now()
		for n := 0; ; n++ {
			store(t, c, fmt.Sprint("own", n))
			ids, _ := received(t, r)
			if slices.Contains(ids, "other") {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > 2*claimEvery {
			t.Errorf("the other row was received after %v", took)
		}
	})
}

// After the clock of this process was set back, the last claim is in the future.
func TestAClockThatIsSetBackDelaysNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		_, r := openDirect(t, f)
		f.insert(&Row{Queue: "a", ID: "other", Headers: []byte("{}")}) // no notification
		r.(*receiver).claimed.Store(time.Now().Add(time.Hour).UnixNano())
		began := time.Now()
		ids, _ := received(t, r)
		if took := time.Since(began); !slices.Equal(ids, []string{"other"}) || took > claimEvery {
			t.Errorf("received %v after %v, want the row of another process", ids, took)
		}
	})
}

// Direct rows come in the order of their inserts, and within the bounds.
func TestDirectRowsComeInInsertOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		go store(t, c, "0") // so that no claim is due
		received(t, r)
		synctest.Wait()
		entry := transport.OutboxEntry{Ops: []transport.Operation{op("a", "1"), op("a", "2"), op("a", "3")}}
		if err := c.Store(t.Context(), entry); err != nil {
			t.Fatal(err)
		}
		bounded := r.(transport.ByteReceiver)
		for _, want := range []string{"1", "2"} {
			ds, err := bounded.ReceiveBytes(t.Context(), 10, 1)
			if err != nil || len(ds) != 1 || ds[0].Message().ID != want {
				t.Fatalf("received %d (%v), want message %s", len(ds), err, want)
			}
		}
		if ds, err := r.Receive(t.Context(), 1); err != nil || len(ds) != 1 || ds[0].Message().ID != "3" {
			t.Errorf("received %d (%v)", len(ds), err)
		}
	})
}

// Close releases direct rows that were not received.
func TestCloseReleasesDirectRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, _ := openDirect(t, f)
		store(t, c, "1")
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if row := f.rows["a"][0]; row.lease != 0 || row.visible.After(time.Now()) {
			t.Errorf("the row is leased until %v", row.visible)
		}
	})
}

// A backlog is claimed without pauses, in turn with direct rows.
func TestABacklogIsClaimedInTurnWithDirectRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		var ids []string
		for i := range 43 { // of which 3 are direct
			ids = append(ids, fmt.Sprint(i))
		}
		store(t, c, ids...)
		<-time.After(claimEvery)
		began, direct, all := time.Now(), 0, 0
		for n := 0; all < 43 && n < 100; n++ {
			store(t, c, fmt.Sprint("direct", n))
			ids, _ := received(t, r)
			if len(ids) < 10 {
				direct++
			}
			all += len(ids)
		}
		if took := time.Since(began); all < 43 || took > claimEvery {
			t.Errorf("%d rows were received in %v", all, took)
		}
		if direct < 3 {
			t.Errorf("direct rows were received %d times meanwhile, want 3 at least", direct)
		}
	})
}

// The bodies of direct rows have a bound, beyond which rows are claimed.
func TestDirectRowsHaveABoundOfBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c, r := openDirect(t, f)
		body := make([]byte, maxDirectBytes/2+1)
		direct := &c.wakes.receiver("a").direct
		for range 2 { // the room is free again
			for i := range 3 {
				o := op("a", fmt.Sprint(i))
				o.Message.Body = body
				if err := c.Store(t.Context(), transport.OutboxEntry{Ops: []transport.Operation{o}}); err != nil {
					t.Fatal(err)
				}
			}
			if direct.used != 1 || direct.size != int64(len(body)) {
				t.Errorf("%d direct rows of %d bytes, want 1 of %d", direct.used, direct.size, len(body))
			}
			for n := 0; n < 3; {
				ids, _ := received(t, r)
				n += len(ids)
			}
			if direct.used != 0 || direct.size != 0 {
				t.Errorf("%d direct rows of %d bytes are left", direct.used, direct.size)
			}
		}
	})
}
