package inmemory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var (
	orderID   = transport.RecordID{1}
	orderName = transport.RecordName{Kind: "orders/saga", Key: "o-1"}
)

// withRecords opens a broker with the table of records.
func withRecords(t *testing.T, broker *inmemory.Transport) transport.Conn {
	t.Helper()
	conn := open(t, broker)
	if err := conn.(transport.Installer).Install(t.Context(), transport.Plan{Records: []string{orderName.Kind}}); err != nil {
		t.Fatal(err)
	}
	return conn
}

// beginStore begins a transaction that records no key.
func beginStore(t *testing.T, conn transport.Conn) transport.Tx {
	t.Helper()
	tx, err := conn.(transport.OutboxStore).BeginStore(t.Context(), transport.OutboxEntry{})
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// saved loads the record in tx, and saves it with a status and a state.
func saved(t *testing.T, tx transport.Tx, status transport.RecordStatus, state string) transport.Record {
	t.Helper()
	r, err := tx.(transport.StateStore).Load(t.Context(), orderID, &orderName)
	if err != nil {
		t.Fatal(err)
	}
	r.Status, r.State, r.Keep = status, []byte(state), time.Hour
	if err := tx.(transport.StateStore).Save(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r
}

func complete(t *testing.T, tx transport.Tx) {
	t.Helper()
	if err := tx.Complete(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

func TestALoadWaitsForTheTransactionThatHasTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := withRecords(t, &inmemory.Transport{})
		first := beginStore(t, conn)
		saved(t, first, transport.RecordActive, `{"n":1}`)
		loaded := make(chan transport.Record)
		go func() {
			second := beginStore(t, conn)
			r, err := second.(transport.StateStore).Load(t.Context(), orderID, &orderName)
			if err != nil {
				t.Error(err)
			}
			loaded <- r
			complete(t, second)
		}()
		synctest.Wait()
		time.Sleep(4 * time.Second)
		select {
		case r := <-loaded:
			t.Errorf("loaded %+v while another transaction had it", r)
		default:
		}
		complete(t, first)
		if r := <-loaded; r.Version != 1 || string(r.State) != `{"n":1}` || r.Status != transport.RecordActive {
			t.Errorf("loaded %+v, want what the first transaction saved", r)
		}
	})
}

func TestALoadGivesUpAfterFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := withRecords(t, &inmemory.Transport{})
		saved(t, beginStore(t, conn), transport.RecordActive, `{}`)
		began, second := time.Now(), beginStore(t, conn)
		_, err := second.(transport.StateStore).Load(t.Context(), orderID, &orderName)
		if !errors.Is(err, transport.ErrConflict) || time.Since(began) != 5*time.Second {
			t.Errorf("Load failed with %v after %v, want ErrConflict after 5s", err, time.Since(began))
		}
		if err := second.Complete(t.Context(), nil); !errors.Is(err, transport.ErrConflict) {
			t.Errorf("Complete after that: %v, want ErrConflict", err)
		}
	})
}

func TestAClosedConnLocksNoRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &inmemory.Transport{}
		conn, other := withRecords(t, broker), withRecords(t, broker)
		open := beginStore(t, conn)
		saved(t, open, transport.RecordActive, `{}`)
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if err := open.Complete(t.Context(), nil); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Complete on a closed conn: %v, want ErrClosed", err)
		}
		began, tx := time.Now(), beginStore(t, other)
		if r := saved(t, tx, transport.RecordActive, `{}`); r.Version != 0 || !time.Now().Equal(began) {
			t.Errorf("loaded version %d after %v, want a new record at once", r.Version, time.Since(began))
		}
		complete(t, tx)
	})
}

func TestAnEndedRecordIsKeptForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := withRecords(t, &inmemory.Transport{})
		tx := beginStore(t, conn)
		saved(t, tx, transport.RecordEnded, `{}`)
		complete(t, tx)
		time.Sleep(time.Hour - time.Second)
		inspector := conn.(transport.StateInspector)
		if r, err := inspector.Record(t.Context(), orderID); err != nil || r.State != nil || r.Status != transport.RecordEnded {
			t.Errorf("the record is %+v (%v), want an ended one without a state", r, err)
		}
		time.Sleep(time.Second)
		if r, err := inspector.Record(t.Context(), orderID); !errors.Is(err, transport.ErrNoRecord) {
			t.Errorf("the record is %+v (%v), want none", r, err)
		}
	})
}

func TestTransactionsWithoutOutboxesStoreNoRecords(t *testing.T) {
	conn := open(t, &inmemory.Transport{Without: inmemory.OutboxStore}, "orders")
	if _, ok := conn.(transport.StateInspector); ok {
		t.Error("the Conn is a StateInspector")
	}
	dispatch(t, conn, to("orders", "1"))
	tx := begin(t, one(t, receiver(t, conn, "orders"), "1"))
	if _, ok := tx.(transport.StateStore); ok {
		t.Error("the transaction is a StateStore")
	}
	written := false
	if err := inmemory.OnCommit(t.Context(), session{tx: tx}, func() { written = true }); err != nil {
		t.Fatal(err)
	}
	if complete(t, tx); !written {
		t.Error("the handler's write was not committed")
	}
}
