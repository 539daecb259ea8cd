package inmemory_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// session gives out a transaction as a session of the endpoint does.
type session struct {
	tx  transport.Tx
	err error
}

func (s session) Tx(context.Context) (transport.HandlerTx, error) {
	return transport.NewHandlerTx(s.tx), s.err
}

func begin(tb testing.TB, d transport.Delivery) transport.Tx {
	tb.Helper()
	tx, err := d.(transport.Transactor).Begin(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return tx
}

func TestATransactionWritesSendsAndCompletesTogether(t *testing.T) {
	broker := &inmemory.Transport{}
	conn := open(t, broker, "orders", "billing")
	if !conn.Limits().Atomic {
		t.Error("Limits.Atomic is false")
	}
	dispatch(t, conn, to("orders", "1"))
	tx := begin(t, one(t, receiver(t, conn, "orders"), "1"))
	written := 0
	if err := inmemory.OnCommit(t.Context(), session{tx: tx}, func() { written++ }); err != nil {
		t.Fatal(err)
	}
	if written != 0 {
		t.Fatal("written before the commit")
	}
	if err := tx.Complete(t.Context(), []transport.Operation{to("billing", "2")}); err != nil {
		t.Fatal(err)
	}
	waiting(t, broker, "billing", "2")
	if got := stats(t, conn, "orders").Unsettled; written != 1 || got != 0 {
		t.Errorf("written %d times with %d unsettled, want 1 and 0", written, got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Errorf("Rollback after Complete: %v", err)
	}
	if err := tx.Complete(t.Context(), nil); err == nil {
		t.Error("completed twice")
	}
}

func TestARefusedTransactionWritesNothing(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "orders")
	dispatch(t, conn, to("orders", "1"))
	d := one(t, receiver(t, conn, "orders"), "1")
	tx := begin(t, d)
	err := inmemory.OnCommit(t.Context(), session{tx: tx}, func() { t.Error("written") })
	if err != nil {
		t.Fatal(err)
	}
	err = tx.Complete(t.Context(), []transport.Operation{to("nowhere", "2")})
	if !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("error = %v, want ErrNoQueue", err)
	}
	do(t, d.Retry) // the delivery was not settled
}

func TestARolledBackTransactionWritesNothing(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "orders")
	dispatch(t, conn, to("orders", "1"))
	d := one(t, receiver(t, conn, "orders"), "1")
	tx := begin(t, d)
	err := inmemory.OnCommit(t.Context(), session{tx: tx}, func() { t.Error("written") })
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tx.Complete(t.Context(), nil); err == nil {
		t.Error("completed after Rollback")
	}
	do(t, d.Complete)
}

func TestOnCommitNeedsATransactionOfThisDriver(t *testing.T) {
	if err := inmemory.OnCommit(t.Context(), session{}, func() {}); err == nil {
		t.Error("it took a transaction of another driver")
	}
	none := errors.New("no transaction")
	if err := inmemory.OnCommit(t.Context(), session{err: none}, func() {}); !errors.Is(err, none) {
		t.Errorf("error = %v, want the session's", err)
	}
}

func TestOnCommitMayBeCalledBySeveralGoroutines(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "orders")
	dispatch(t, conn, to("orders", "1"))
	tx, err := one(t, receiver(t, conn, "orders"), "1").(transport.Transactor).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var n int
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if err := inmemory.OnCommit(t.Context(), session{tx: tx}, func() { n++ }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := tx.Complete(t.Context(), nil); err != nil || n != 100 {
		t.Errorf("%d writes were made, want 100; error %v", n, err)
	}
	if err := inmemory.OnCommit(t.Context(), session{tx: tx}, func() {}); err == nil {
		t.Error("OnCommit succeeded after the end of the transaction")
	}
}
