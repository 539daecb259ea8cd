package acceptance_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport"
)

// The proof that a deferred retry survives the process: it is killed while the message waits for
// its retry, and while the retry runs.

const retryVariable = "HOLDFAST_RETRY_WORKER" // the store

// retryWorker handles messages until it is killed, and says on its standard output what it does.
// The first attempt fails. The second one does not end at its first delivery.
func retryWorker() error {
	store, err := openKillStore(os.Getenv(retryVariable), os.Getenv(placeVariable))
	if err != nil {
		return err
	}
	defer store.Close()
	cfg := killConfig(store, false)
	cfg.Recoverability = recoverability.Config{Rules: []recoverability.Rule{{Retry: resilience.Deferred(resilience.Policy{
		Name: "killed", Retry: resilience.Retry{Max: 1, Delay: 3 * time.Second},
	})}}}
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ work) error {
		n, most := resilience.Attempt(ctx)
		fmt.Printf("attempt %d of %d\n", n, most)
		switch {
		case n == 1:
			return errors.New("the first one fails")
		case s.Attempt().N == 1:
			<-ctx.Done() // until it is killed
			return ctx.Err()
		}
		return nil
	})}
	cfg.Notify = []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) { fmt.Println(n.Kind) }}
	cfg.Pipeline.Dispatch = onDispatch(func(next func() error) error {
		err := next()
		if err == nil {
			fmt.Println("done")
		}
		return err
	})
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	return runWorker(cfg)
}

func TestDeferredRetryOutlivesKills(t *testing.T) {
	onBrokers(t, []string{"postgres"}, []string{"sqlite", "quorum"}, func(t *testing.T, store string) {
		place := placeOf(t, store)
		out, err := openKillStore(store, place)
		must(t, err)
		defer out.Close()
		p := &killProof{t: t, out: out}
		p.conn, err = out.transport().Open(t.Context(), transport.Env{})
		must(t, err)
		defer p.conn.Close()
		must(t, p.conn.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "work"}, {Name: "error"}}}))
		p.send(t.Context(), []int{1})
		for i, life := range [][]string{
			{"attempt 1 of 2", "delayed_retry"}, // killed while the message waits
			{"attempt 2 of 2"},                  // killed while it is handled, which is no failed attempt
			{"attempt 2 of 2", "done"},
		} {
			w, says := startRetryWorker(t, store, place)
			for _, want := range life {
				if got := within(t, says, want); got != want {
					t.Fatalf("the worker says %q, want %q", got, want)
				}
			}
			if store == "quorum" && i == 0 { // whose copy and acknowledgement are no unit: a kill may leave both
				w.stop(t)
			} else {
				w.kill(t)
			}
		}
		stats, err := p.conn.(transport.Inspector).Inspect(t.Context(), "error")
		if err != nil || stats[0].Ready != 0 {
			t.Errorf("the error queue has %+v, %v", stats, err)
		}
	})
}

// startRetryWorker starts a worker, and returns the lines that it says.
func startRetryWorker(t *testing.T, store, place string) (*worker, <-chan string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), retryVariable+"="+store, placeVariable+"="+place)
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	says := make(chan string, 100)
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			says <- lines.Text()
		}
	}()
	return &worker{cmd, stdin}, says
}
