package transport

import (
	"context"
	"errors"
)

// HandlerTx is the transaction of a delivery as a handler sees it. It has no methods: a function of
// the driver, such as sqlite.OnCommit, uses it through [TxOf]. The zero value is no transaction.
type HandlerTx struct{ tx Tx }

// NewHandlerTx returns tx for a handler.
func NewHandlerTx(tx Tx) HandlerTx { return HandlerTx{tx} }

// TxOf returns the driver's transaction behind h as a T, and whether it is one. T is the driver's
// type or an interface of methods that its transactions have. Complete and Rollback are not for
// handlers: where T asks for nothing but these, as [Tx] does, they return an error.
func TxOf[T any](h HandlerTx) (T, bool) {
	if refusing, ok := any(refusingTx{}).(T); ok {
		return refusing, h.tx != nil
	}
	own, ok := h.tx.(T)
	return own, ok
}

// refusingTx is any transaction to its handler, who cannot end it.
type refusingTx struct{}

var errEndsWithMessage = errors.New("the endpoint ends the transaction with the message: " +
	"return nil from the handler to commit it, an error to roll it back")

// Complete returns an error.
func (refusingTx) Complete(context.Context, []Operation) error { return errEndsWithMessage }

// Rollback returns an error.
func (refusingTx) Rollback(context.Context) error { return errEndsWithMessage }
