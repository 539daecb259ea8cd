package sqlserver

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// A handler's write to a database that takes no writes is an outage.
// A handler may find out first that the database takes no writes. The message is not the cause.
func TestReadOnlyDatabaseIsAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		number int32
		class  uint8
		mode   answer // of the database; without a row it does not say
		want   bool
	}{
		"no page left":                     {1101, 17, answer{}, true},
		"full filegroup":                   {1105, 17, answer{}, true},
		"full log":                         {9002, 17, answer{}, true},
		"size quota":                       {40544, 17, answer{}, true},
		"read-only database":               {3906, 16, column("READ_ONLY"), true},
		"another database, read-only":      {3906, 16, column("READ_WRITE"), false},
		"read-only, and does not say":      {3906, 16, rowsOf([]driver.Value{nil}), false},
		"read-only, and does not answer":   {3906, 16, answer{err: errors.New("cut")}, false},
		"a duplicate key of the handler's": {2627, 14, column("READ_ONLY"), false},
		"no permission of the handler":     {229, 14, column("READ_ONLY"), false},
		"a missing table of the handler":   {208, 16, column("READ_ONLY"), false},
		"an error of the connection alone": {0, 0, column("READ_ONLY"), false},
	} {
		f, s := newFake(t, map[string]answer{"UPDATE stock": serverError(c.number, c.class), updateability: c.mode})
		conn := tablequeue.Open(s.parts(), tablequeue.Config{})
		tx, err := conn.BeginStore(t.Context(), transport.OutboxEntry{})
		ok(t, err)
		inner, _ := tablequeue.Inner(transport.NewHandlerTx(tx))
		own, err := inner.(*handlerTx).begun(t.Context())
		ok(t, err)
		_, err = own.ExecContext(t.Context(), "UPDATE stock")
		if c.number == 0 {
			err = errors.New("broken pipe")
		}
		err = fmt.Errorf("reserve: %w", err)
		if got := tx.(transport.OutageDetector).Outage(t.Context(), err); got != c.want {
			t.Errorf("%s: that %v is an outage is %t, want %t", name, err, got, c.want)
		}
		for _, a := range f.take() {
			if a.text == updateability && a.tx {
				t.Errorf("%s: the mode of the database was asked for in the handler's transaction, which has failed", name)
			}
		}
		ok(t, tx.Rollback(t.Context()))
	}
}

func TestAMissingRightIsDenied(t *testing.T) {
	for number, want := range map[int32]bool{229: true, 230: true, 208: false, 2627: false} {
		f, s := newFake(t, map[string]answer{recordPart: serverError(number, 14)})
		conn := tablequeue.Open(s.parts(), tablequeue.Config{})
		err := conn.Store(t.Context(), transport.OutboxEntry{Inbox: "in", Key: &transport.HandledKey{}})
		if err == nil || errors.Is(err, transport.ErrDenied) != want {
			t.Errorf("error %d: %v, want ErrDenied %t", number, err, want)
		}
		f.take()
	}
}
