package transport_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// ownTx is a driver's transaction with a method of its own.
type ownTx struct{ completed, rolledBack int }

func (t *ownTx) Complete(context.Context, []transport.Operation) error { t.completed++; return nil }

func (t *ownTx) Rollback(context.Context) error { t.rolledBack++; return nil }

func (t *ownTx) Query() string { return "rows" }

func TestTxOfReturnsTheDriversTransaction(t *testing.T) {
	own := &ownTx{}
	h := transport.NewHandlerTx(own)
	if got, ok := transport.TxOf[*ownTx](h); !ok || got != own {
		t.Errorf("got %v, %t", got, ok)
	}
	if q, ok := transport.TxOf[interface{ Query() string }](h); !ok || q.Query() != "rows" {
		t.Error("an interface of the driver's methods is not found")
	}
	if _, ok := transport.TxOf[interface{ Exec() }](h); ok {
		t.Error("an interface that the transaction does not implement is found")
	}
	if _, ok := transport.TxOf[*ownTx](transport.HandlerTx{}); ok {
		t.Error("no transaction is found as the driver's")
	}
	if _, ok := transport.TxOf[transport.Tx](transport.HandlerTx{}); ok {
		t.Error("no transaction is found as a Tx")
	}
}

func TestATxOfAHandlerCannotBeEnded(t *testing.T) {
	own := &ownTx{}
	tx, ok := transport.TxOf[transport.Tx](transport.NewHandlerTx(own))
	if !ok {
		t.Fatal("there is no transaction")
	}
	if tx.Complete(t.Context(), nil) == nil || tx.Rollback(t.Context()) == nil {
		t.Error("no error")
	}
	if own.completed+own.rolledBack != 0 {
		t.Error("the driver's transaction was ended")
	}
}
