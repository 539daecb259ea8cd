package endpoint_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestWaitReadyReturnsTheErrorOfRun(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Fail = func(verb, _ string) error {
			if verb == "Open" {
				time.Sleep(time.Second)
				return errNo
			}
			return nil
		}
		e, err := endpoint.New(harness.Sales(broker))
		if err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() { waited <- e.WaitReady(t.Context()) }()
		synctest.Wait()
		if err := e.Run(t.Context()); !errors.Is(err, errNo) {
			t.Fatalf("Run returned %v", err)
		}
		for _, err := range []error{<-waited, e.WaitReady(t.Context())} {
			if !errors.Is(err, errNo) {
				t.Errorf("waiting returned %v, want the error of Run", err)
			}
		}
	})
}

func TestWaitReadyEndsWithItsContextAndWithRun(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		e, err := endpoint.New(harness.Sales(broker))
		if err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeoutCause(t.Context(), time.Second, errNo)
		defer cancel()
		if err := e.WaitReady(soon); !errors.Is(err, errNo) {
			t.Errorf("before Run: %v, want the cause of the context", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		if err := e.WaitReady(ctx); err != nil {
			t.Errorf("while Run goes on: %v", err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := e.WaitReady(t.Context()); !errors.Is(err, endpoint.ErrNotRunning) {
			t.Errorf("after Run: %v, want ErrNotRunning", err)
		}
	})
}
