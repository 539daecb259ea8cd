package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// session stands for the endpoint's session, which a handler is given.
type session struct{ tx transport.Tx }

func (s session) Tx(context.Context) (transport.HandlerTx, error) {
	return transport.NewHandlerTx(s.tx), nil
}

// A handler's write to a table in the same file is one with the completion of its message.
func ExampleOnCommit() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "holdfast")
	check(err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "orders.db")

	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_busy_timeout=5000")
	check(err)
	defer db.Close()
	_, err = db.ExecContext(ctx, `create table charges (number integer primary key)`)
	check(err)

	conn, err := (&sqlite.Transport{Path: path}).Open(ctx, transport.Env{Endpoint: "billing"})
	check(err)
	defer conn.Close()
	check(conn.(transport.Installer).Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: "billing"}}}))
	_, err = conn.Dispatch(ctx, []transport.Operation{{Queue: "billing", Message: &transport.Message{ID: "order 7"}}})
	check(err)
	receiver, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "billing"})
	check(err)
	deliveries, err := receiver.Receive(ctx, 1)
	check(err)

	tx, err := deliveries[0].(transport.Transactor).Begin(ctx)
	check(err)
	s := session{tx}
	// The handler:
	check(sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into charges (number) values (7)`)
		return err
	}))
	// The endpoint, when the handler has returned nil:
	check(tx.Complete(ctx, nil))

	var charges, messages int
	check(db.QueryRowContext(ctx, `select count(*) from charges`).Scan(&charges))
	check(db.QueryRowContext(ctx, `select count(*) from holdfast_messages`).Scan(&messages))
	fmt.Println(charges, "charge,", messages, "messages left")
	// Output: 1 charge, 0 messages left
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
