package baddays_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

// sqsLargeFailure fails messages that SQS has just had room for, in the queue and among those that
// it gave up.
func sqsLargeFailure(t *testing.T) outcome {
	a := newAccount(t)
	a.install()
	var large []string
	sizes := []int{800_000, 1<<20 - 200, 737_000, 783_000}[:size(2, 4)]
	for i, size := range sizes {
		large = append(large, a.put("sales", i, size), a.put("sales.dead-letters", 10+i, size))
	}
	a.send("sales", 100, 101, 102)
	began := time.Now()
	a.run(func(cfg *endpoint.Config) {
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
	}, func(_ context.Context, _ *endpoint.Session, m sqsJob) error {
		if m.N < 100 {
			return errors.New("it fails each time")
		}
		return nil
	})
	found := a.failed(len(large))
	took := time.Since(began)
	for _, body := range large {
		if h, ok := found[body]; !ok || h.Get(header.FailedQ) == "" {
			t.Errorf("a message of %d bytes is not in the error queue as it was", len(body))
		}
	}
	for n := range sizes {
		if got := a.attempts(n); got != 2 {
			t.Errorf("message %d was handled %d times, want 2", n, got)
		}
	}
	a.until("the neighbours are handled", func() bool { return a.attempts(100)+a.attempts(101)+a.attempts(102) == 3 })
	return outcome{message: fmt.Sprintf("all %d in the error queue as they were", len(large)), neighbours: "handled once each", normal: took}
}
