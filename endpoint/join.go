package endpoint

import (
	"context"
	"errors"
	"reflect"

	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// In sends or publishes in tx, a transaction that the caller has begun in the transport's own
// database and ends himself, as a web request does: the message leaves when tx is committed,
// together with what else was written in it, and never when it is rolled back. It is for
// [Endpoint.Send], SendLocal and Publish; what a handler sends leaves with the message it handles.
//
// What tx has to be is the transport's: a pgx.Tx for postgres.Transport, a *sql.Tx on the
// same file for sqlite.Transport; others have no such transactions, and sending fails. It is used
// by Send and not kept; nothing else may use it meanwhile. After an error of Send, tx
// goes on without the message, unless its connection is lost. A receipt is good when
// tx has been committed; after a rollback it must not be used.
func In(tx any) Option {
	if v := reflect.ValueOf(tx); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		tx = noTx{}
	}
	return func(out *pipeline.Outgoing) { out.Tx = tx }
}

// noTx stands for a nil transaction, which is not the same as none.
type noTx struct{}

var (
	errNilTx     = errors.New("the transaction of In is nil: begin it first")
	errNoJoiner  = errors.New("the transport cannot send in a database transaction: commit first, then send without In; a crash between the two loses the message")
	errInHandler = errors.New("In is for sends outside handlers: in a handler leave it out, and with " +
		"SendsAtomicWithReceive write in the transaction of the session")
)

// dispatch sends what belongs to no message: at once, or in the caller's transaction.
func (l *live) dispatch(ctx context.Context, d *pipeline.Dispatch) ([]transport.Receipt, error) {
	if d.Tx == nil {
		return l.conn.Dispatch(ctx, d.Operations)
	}
	joiner, ok := l.conn.(transport.TxDispatcher)
	if !ok {
		return nil, errNoJoiner
	}
	return joiner.DispatchIn(ctx, d.Tx, d.Operations)
}
