package sqs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

// A caller stops waiting for a settle, and the settle has its effect. The same method, called
// again, returns that result, whether the result came before or after the caller stopped.
func TestASettleIsRepeatedAfterItsEffect(t *testing.T) {
	t.Parallel()
	for name, lateBy := range map[string]time.Duration{"the result comes later": time.Second, "the result comes at once": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				in := &inFlight{of: newConn(Transport{}, clients{}, transport.Env{}).receiving, held: make(map[string]*delivery)}
				flushing, recorded, deliver := make(chan struct{}), make(chan struct{}), make(chan struct{})
				in.deletes = batch.New(batch.Config[settling]{
					Flushers: 1, MaxItems: 1,
					Flush: func(ss []settling, errs []error) {
						close(flushing)
						time.Sleep(lateBy)
						ended(ss, errs)
						close(recorded)
						<-deliver
					},
				})
				d := &delivery{inFlight: in, leased: time.Now().Add(time.Minute)}
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					<-flushing
					if lateBy == 0 {
						<-recorded
					}
					cancel()
				}()
				if err := d.Complete(ctx); !errors.Is(err, transport.ErrOutcomeUnknown) {
					t.Errorf("the first Complete: %v, want ErrOutcomeUnknown", err)
				}
				<-recorded
				if err := d.Retry(t.Context()); !errors.Is(err, errSettled) {
					t.Errorf("Retry: %v, want %v", err, errSettled)
				}
				close(deliver)
				if err := d.Complete(t.Context()); err != nil {
					t.Errorf("Complete, repeated: %v", err)
				}
				if err := d.Complete(t.Context()); !errors.Is(err, errSettled) {
					t.Errorf("Complete, once more: %v, want %v", err, errSettled)
				}
			})
		})
	}
}
