package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// The proof of a process without a queue of its own, such as a web server: it writes a row and
// sends a message in one transaction of its own, relays its outbox, and is killed again and again.

const webVariable = "HOLDFAST_WEB_WORKER" // the number of rows to write

// webWorker writes rows, and relays its outbox until it is killed or its standard input ends.
func webWorker() error {
	var most int
	if _, err := fmt.Sscan(os.Getenv(webVariable), &most); err != nil {
		return err
	}
	queues, err := openKillStore("quorum", os.Getenv(placeVariable))
	if err != nil {
		return err
	}
	defer queues.Close()
	rows := os.Getenv(storeVariable)
	store, err := openKillStore("postgres", rows)
	if err != nil {
		return err
	}
	defer store.Close()
	e, err := endpoint.New(endpoint.Config{
		Name: "work", Transport: queues.transport(), Outbox: store.transport(), SendOnly: true, Install: true,
		Messages: []endpoint.Message{endpoint.Command[worked]("Kill.Worked").To("worked")},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	if err := errors.Join(e.WaitReady(ctx), ctx.Err()); err != nil {
		if err = errors.Join(err, <-ended); errors.Is(err, context.Canceled) { // its start may be cut short
			return nil
		}
		return err
	}
	if err := request(ctx, e, rows, most); err != nil && ctx.Err() == nil {
		return err
	}
	return <-ended
}

// request writes the rows that are missing, each with its message.
func request(ctx context.Context, e *endpoint.Endpoint, url string, most int) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for n := 0; n < most-1; {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			// The server may still commit what a killed process sent it: without the lock both
			// would take the same number.
			if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(1)`); err != nil {
				return err
			}
			err := tx.QueryRow(ctx, `INSERT INTO done (n) SELECT coalesce(max(n) + 1, 0) FROM done RETURNING n`).Scan(&n)
			if err != nil || n >= most {
				return errors.Join(err, tx.Rollback(ctx))
			}
			return e.Send(ctx, worked{n}, endpoint.In(tx))
		})
		if err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			return err
		}
	}
	return nil
}

func TestChaosKillsOfAWebServerSendEachRow(t *testing.T) {
	t.Parallel()
	kills, most := 20, 2000
	if brokertest.Fault(t) {
		kills, most = 200, 20_000
	}
	p := &outboxProof{broker: "quorum", database: "postgres"}
	p.t, p.messages = t, most
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p.random = rand.New(rand.NewPCG(seed, 1))
	p.prepare(ctx)
	stop := p.takeNote(ctx)
	w := p.startWeb()
	for i := range kills {
		p.arrived(ctx, 1+(most-1)*i/kills+p.random.IntN(most/kills))
		w.kill(t)
		w = p.startWeb()
	}
	p.arrived(ctx, most)
	w.stop(t)
	stop()
	p.verify(ctx)
}

func (p *outboxProof) startWeb() *worker {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprint(webVariable, "=", p.messages), placeVariable+"="+p.place, storeVariable+"="+p.databaseAt)
	cmd.Stderr = p.t.Output()
	stdin, err := cmd.StdinPipe()
	must(p.t, err)
	must(p.t, cmd.Start())
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &worker{cmd, stdin}
}
