package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

func TestAttemptsAreExactAfterAKilledProcess(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	send(t, conn, to(queue, "m"))
	for attempt := 1; attempt <= 3; attempt++ {
		p := start(t, "hold", path)
		p.says(t, fmt.Sprintf("holding m %d", attempt))
		p.kill(t)
	}
	d := receive(t, receiver(t, conn, queue))
	if got, want := d.Attempt(), (transport.Attempt{N: 4, Exact: true}); got != want {
		t.Errorf("attempt %+v, want %+v", got, want)
	}
}

// Processes under heavy load lose nothing, and see no error.
func TestProcessesUnderHeavyLoad(t *testing.T) {
	path := temp(t)
	dial(t, Transport{Path: path}, queue, "shipping")
	db := mine(t, path)
	execute(t, db, `create table business (id text, native text)`)
	workers := make([]*process, 4)
	for i := range workers {
		workers[i] = start(t, "storm", path)
	}
	want := len(workers) * stormSends
	eventually(t, 10*time.Minute, "all messages handled", func() bool {
		_, n := counts(t, db, `holdfast_messages where queue = 'shipping'`)
		return n >= want
	})
	for _, w := range workers {
		w.stop(t) // fails if it has seen an error
	}
	for _, from := range []string{`business`, `holdfast_messages where queue = 'shipping'`} {
		if distinct, all := counts(t, db, from); distinct != want || all != want {
			t.Errorf("%s: %d messages in %d rows, want %d in %d", from, distinct, all, want, want)
		}
	}
}

func TestKilledProcessesLoseNothing(t *testing.T) { killProof(t, "loop") }

// Killed processes write each business row exactly once, with the commit.
func TestKilledProcessesWriteRowsOnce(t *testing.T) { killProof(t, "atomic") }

// killProof kills one of three workers again and again while it sends messages to them. The
// short form kills 20 of them; HOLDFAST_SOAK=1 kills 200.
func killProof(t *testing.T, mode string) {
	kills := 20
	if os.Getenv("HOLDFAST_SOAK") == "1" {
		kills = 200
	}
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue, "shipping")
	db := mine(t, path)
	execute(t, db, `create table business (id text, native text)`) // without a key: duplicates would show

	seed := rand.New(rand.NewPCG(20, 26))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sent := make(chan int)
	go func() { sent <- keepSending(ctx, t, conn) }()

	workers := make([]*process, 3)
	for i := range workers {
		workers[i] = start(t, mode, path)
	}
	for range kills {
		victim := seed.IntN(len(workers))
		workers[victim].says(t, "ready")
		if err := backoff.Sleep(ctx, time.Duration(seed.IntN(120))*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		workers[victim].kill(t)
		workers[victim] = start(t, mode, path)
	}
	cancel()
	want := <-sent
	eventually(t, 10*time.Minute, "all messages handled", func() bool {
		return count(t, db, `select count(*) from holdfast_messages where queue = ?`, queue) == 0
	})
	for _, w := range workers {
		w.says(t, "ready") // one that is stopped before it has opened the file fails
		w.stop(t)
	}

	type result struct{ Sent, Shipped, ShippedRows, Business, BusinessRows int }
	got, expected := result{Sent: want}, result{Sent: want, Shipped: want, ShippedRows: want}
	got.Shipped, got.ShippedRows = counts(t, db, `holdfast_messages where queue = 'shipping'`)
	got.Business, got.BusinessRows = counts(t, db, `business`)
	if mode == "atomic" {
		expected.Business, expected.BusinessRows = want, want
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Error("after all those kills (-want +got):\n", diff)
	}
	again := count(t, db, `select count(*) from holdfast_messages where cast(headers ->> 'attempt' as integer) > 1`)
	t.Logf("%d messages, %d kills, %d messages delivered again", want, kills, again)
	if again == 0 {
		t.Error("no message was delivered again: no kill hit a worker with a message")
	}
	check := ""
	if err := db.QueryRowContext(t.Context(), `pragma integrity_check`).Scan(&check); err != nil || check != "ok" {
		t.Errorf("the file's integrity: %v, %s", err, check)
	}
}

// keepSending sends until ctx ends, and says how many.
func keepSending(ctx context.Context, t *testing.T, conn transport.Conn) int {
	const backlog, batch = 1000, 20
	for n, size := 0, backlog; ; size = batch {
		ops := make([]transport.Operation, size)
		for i := range ops {
			ops[i] = to(queue, fmt.Sprint(n+i))
		}
		if _, err := conn.Dispatch(context.Background(), ops); err != nil {
			t.Error(err)
			return n
		}
		n += len(ops)
		if backoff.Sleep(ctx, 20*time.Millisecond) != nil {
			return n
		}
	}
}
