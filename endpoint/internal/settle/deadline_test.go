package settle

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A message that is settled while the broker is blocked must not fail for that.
func TestSettlingWaitsWhileTheBrokerIsBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var blocked atomic.Bool
		d := Deadlines{Parent: t.Context(), Blocked: blocked.Load}
		defer d.Close()
		ctx := d.context()
		derived, stop := context.WithCancel(ctx)
		defer stop()
		blocked.Store(true)
		time.Sleep(5 * time.Minute)
		if err := ctx.Err(); err != nil {
			t.Errorf("while the broker is blocked: %v", err)
		}
		blocked.Store(false)
		unblocked := time.Now()
		<-ctx.Done()
		if after := time.Since(unblocked); after < 2*Timeout {
			t.Errorf("it ended %v after the broker was unblocked", after)
		}
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("it ended by %v", ctx.Err())
		}
		<-derived.Done()
		err, cause := derived.Err(), context.Cause(derived)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(cause, err) {
			t.Errorf("a derived context ended by %v, %v", err, cause)
		}
		begin := time.Now()
		<-d.context().Done()
		if took := time.Since(begin); took != 2*Timeout {
			t.Errorf("without a blocked broker it lasts %v", took)
		}
	})
}
