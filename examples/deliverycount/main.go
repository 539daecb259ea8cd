// Command deliverycount shows how a behavior ends the endless retries of a message that kills the
// process. No handler returns an error for such a message, so recoverability never decides about
// it. But the queue counts the deliveries of a message: the behavior reads the count before the
// handler is called, and fails the message with an unrecoverable error. The message is moved to the
// error queue.
//
// Every endpoint has a guard, recoverability.Quarantine, which identifies the message with
// certainty. This limit on deliveries is simpler: it also parks messages that were in flight beside
// it each time. The limit has to be below that of the guard.
//
// The program is its own supervisor: it restarts a worker that dies.
//
//	go run ./examples/deliverycount
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

type ImportFile struct{ Name string }

var errTooManyDeliveries = errors.New("delivered too often: it may kill the process")

// atMost accepts n deliveries of a message: fewer than Quarantine.After, no fewer than Immediate+1.
func atMost(n int) pipeline.Behavior[*pipeline.Receive] {
	return func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
		return func(ctx context.Context, in *pipeline.Receive) error {
			if in.Attempt.N > n {
				return recoverability.Unrecoverable(errTooManyDeliveries)
			}
			return next(ctx, in)
		}
	}
}

// work runs an endpoint until a message has been given up.
func work(path string) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cfg := endpoint.Config{
		Name: "imports", Install: true,
		Transport: &sqlite.Transport{Path: path, Lease: 500 * time.Millisecond}, // that long the next worker waits
		Messages:  []endpoint.Message{endpoint.Command[ImportFile]("Imports.ImportFile")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, s *endpoint.Session, m ImportFile) error {
			fmt.Printf("attempt %d: %s takes all memory there is\n", s.Attempt().N, m.Name)
			os.Exit(137) // as the system's killer does
			return nil
		})},
		// The endpoint has a guard of its own, which is more patient: see atMost.
		Recoverability: recoverability.Config{Immediate: 2, Quarantine: recoverability.Quarantine{After: 10}},
	}
	cfg.Pipeline.Receive.Use("at most", atMost(3))
	cfg.Pipeline.Recover.Use("stop", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
		return func(ctx context.Context, in *pipeline.Recover) error {
			fmt.Printf("attempt %d: %v: %v\n", in.Attempt.N, in.Failure.Err, in.Action)
			stop()
			return next(ctx, in)
		}
	})
	imports, err := endpoint.New(cfg)
	if err != nil {
		return err
	}
	go func() {
		if imports.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		if name := os.Getenv("IMPORT"); name != "" {
			_ = imports.SendLocal(ctx, ImportFile{Name: name}) // who dies meanwhile hears of no error
		}
	}()
	return imports.Run(ctx)
}

func main() {
	if path := os.Getenv("WORKER"); path != "" {
		if err := work(path); err != nil {
			log.Fatal(err)
		}
		return
	}
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is among the temporary files
	environment := append(os.Environ(), "WORKER="+filepath.Join(dir, "imports.db"))
	for n := range 10 {
		worker := exec.Command(os.Args[0])
		worker.Env, worker.Stdout, worker.Stderr = environment, os.Stdout, os.Stderr
		if n == 0 {
			worker.Env = append(worker.Env, "IMPORT=huge.csv") // it sends the message, once
		}
		if worker.Run() == nil {
			break
		}
	}
}
