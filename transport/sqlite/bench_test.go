package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// BenchmarkLoop is what each message costs that is received and completed together with one
// that it sends: ours with 8 handlers, beside a loop that does the same with batches of 100 on the
// same driver. The bar is 0.4 of the raw loop's messages per second.
//
//	go test -run - -bench Loop -benchtime 50000x -count 5 ./transport/sqlite
func BenchmarkLoop(b *testing.B) {
	b.Run("raw", rawLoop)
	for _, handlers := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("c%d", handlers), func(b *testing.B) { ourLoop(b, handlers, completeWith) })
	}
}

// BenchmarkAtomic is BenchmarkLoop with a business row written for each message.
func BenchmarkAtomic(b *testing.B) {
	for _, handlers := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("c%d", handlers), func(b *testing.B) { ourLoop(b, handlers, completeInTx) })
	}
}

func benchMessage() *transport.Message {
	m := &transport.Message{ID: "0192f0a4-5a5a-7000-8000-000000000001", Body: []byte(strings.Repeat("x", 200))}
	for i := range 8 {
		m.Headers.Set(fmt.Sprintf("NServiceBus.Header%d", i), "0192f0a4-5a5a-7000-8000-000000000001")
	}
	return m
}

func completeWith(ctx context.Context, d transport.Delivery, ops []transport.Operation) error {
	return d.(transport.Completer).CompleteWith(ctx, ops)
}

func completeInTx(ctx context.Context, d transport.Delivery, ops []transport.Operation) error {
	tx, err := d.(transport.Transactor).Begin(ctx)
	if err != nil {
		return err
	}
	err = OnCommit(ctx, given{tx}, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into business (id, native) values (?, ?)`, d.Message().ID, d.Message().NativeID)
		return err
	})
	if err != nil {
		return err
	}
	return tx.Complete(ctx, ops)
}

func fill(b *testing.B, conn transport.Conn, n int) {
	ops := make([]transport.Operation, 100)
	for i := range ops {
		ops[i] = transport.Operation{Queue: queue, Message: benchMessage()}
	}
	for sent := 0; sent < n; sent += len(ops) {
		send(b, conn, ops[:min(len(ops), n-sent)]...)
	}
}

// settlesPerHandler is how many settles an endpoint lets be under way for each of its handlers:
// a handler is free when it has returned.
const settlesPerHandler = 4

// ourLoop does what an endpoint does whose handlers take no time.
func ourLoop(b *testing.B, handlers int, complete func(context.Context, transport.Delivery, []transport.Operation) error) {
	path := temp(b)
	conn := dial(b, Transport{Path: path}, queue, "shipping")
	execute(b, mine(b, path), `create table business (id text, native text primary key) strict`)
	fill(b, conn, b.N)
	r := receiver(b, conn, queue)
	buffer := make(chan transport.Delivery, 2*handlers)
	settles := settlesPerHandler * handlers
	var working sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	for range settles {
		working.Go(func() {
			for d := range buffer {
				if err := complete(b.Context(), d, []transport.Operation{{Queue: "shipping", Message: benchMessage()}}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for n := 0; n < b.N; {
		ds, err := r.(transport.ByteReceiver).ReceiveBytes(b.Context(), max(handlers, cap(buffer)-len(buffer)), 64<<20) // as the pump does
		if err != nil {
			b.Fatal(err)
		}
		for _, d := range ds {
			buffer <- d
		}
		n += len(ds)
	}
	close(buffer)
	working.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "messages/s")
}

// rawLoop is written by hand for the same tables.
func rawLoop(b *testing.B) {
	path := temp(b)
	fill(b, dial(b, Transport{Path: path}, queue, "shipping"), b.N)
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_synchronous=FULL")
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	claim := prepared(b, db, `update holdfast_messages set delivery_count = delivery_count + 1, visible_at = ?, lease_id = ?
		where seq in (select seq from holdfast_messages where queue = 'billing' and visible_at <= ? order by visible_at, seq limit 100)
		returning seq, id, headers, body`)
	remove := prepared(b, db, `delete from holdfast_messages where seq = ? and lease_id = ?`)
	insert := prepared(b, db, `insert into holdfast_messages (queue, id, headers, body, visible_at) values ('shipping', ?, ?, ?, ?)`)
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	for n := 0; n < b.N; {
		n += rawBatch(b, db, claim, remove, insert)
	}
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "messages/s")
}

func prepared(b *testing.B, db *sql.DB, query string) *sql.Stmt {
	s, err := db.Prepare(query)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func rawBatch(b *testing.B, db *sql.DB, claim, remove, insert *sql.Stmt) int {
	ctx := context.Background()
	now := time.Now().UnixMicro()
	rows, err := claim.QueryContext(ctx, now+30_000_000, now, now)
	if err != nil {
		b.Fatal(err)
	}
	var seqs []int64
	for rows.Next() {
		var seq int64
		var id, headers string
		var body []byte
		if err := rows.Scan(&seq, &id, &headers, &body); err != nil {
			b.Fatal(err)
		}
		if _, err := header.ParseJSON(headers); err != nil {
			b.Fatal(err)
		}
		seqs = append(seqs, seq)
	}
	rows.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, seq := range seqs {
		m := benchMessage()
		if _, err := tx.StmtContext(ctx, remove).ExecContext(ctx, seq, now); err != nil {
			b.Fatal(err)
		}
		if _, err := tx.StmtContext(ctx, insert).ExecContext(ctx, m.ID, string(m.Headers.AppendJSON(nil)), m.Body, now); err != nil {
			b.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
	return len(seqs)
}
