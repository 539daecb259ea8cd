package endpoint

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/transport"
)

// handlerTx is a transaction as handlers see it: they cannot end it, because its end is that of the message.
type handlerTx struct{ tx transport.Tx }

var errNotYourTx = errors.New("the endpoint ends the transaction with the message: return nil from the handler to commit it, an error to roll it back")

// Complete returns an error.
func (*handlerTx) Complete(context.Context, []transport.Operation) error { return errNotYourTx }

// Rollback returns an error.
func (*handlerTx) Rollback(context.Context) error { return errNotYourTx }

// Unwrap is for [transport.UnwrapTx].
func (t *handlerTx) Unwrap() transport.Tx { return t.tx }
