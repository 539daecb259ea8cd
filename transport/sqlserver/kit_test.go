package sqlserver

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

const anID = "0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1"

// session is one of an endpoint, with the transaction of a message.
type session struct{ tx transport.Tx }

func (s session) Tx(context.Context) (transport.HandlerTx, error) {
	return transport.NewHandlerTx(s.tx), nil
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func isErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error = %v, want %v", err, want)
	}
}
