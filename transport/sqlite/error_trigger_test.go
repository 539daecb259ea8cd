package sqlite

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// A trigger that fails for one message fails no other message of its batch.
func TestATriggersErrorFailsItsMessageOnly(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	db := mine(t, path)
	execute(t, db, `create table numbers (n);
		create trigger parse after insert on holdfast_messages begin
			insert into numbers values (json_extract(cast(new.body as text), '$.n'));
		end`)
	lock, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	const n = 20
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		op := to(queue, fmt.Sprint(i))
		op.Message.Body = []byte(map[bool]string{true: `<n/>`, false: `{"n":1}`}[i == 7])
		all.Go(func() { _, errs[i] = conn.Dispatch(t.Context(), []transport.Operation{op}) })
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	for i, err := range errs {
		if (err != nil) != (i == 7) || errors.Is(err, transport.ErrUnreachable) {
			t.Errorf("message %d: %v", i, err)
		}
	}
}
