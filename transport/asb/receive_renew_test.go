package asb

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

func TestHowOftenShortLocksAreRenewed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		left  time.Duration // of the first message's lock
		every time.Duration // 0 is never
	}{
		{"as long as reckoned", 58 * time.Second, 0},
		{"shorter", 30 * time.Second, 10 * time.Second},
		{"on its way for long", 2 * time.Second, leastLock / 3},
		{"our clock is ahead", -time.Hour, leastLock / 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancelCause(t.Context())
				stop(errors.New("closed")) // so that keep ends when it looks for the first time
				r := &receiver{ctx: ctx, of: &receivers{core: &core{ctx: t.Context(), log: slog.New(slog.DiscardHandler), lease: time.Minute}}}
				begun := time.Now()
				until := begun.Add(tt.left)
				r.mindLock(&azservicebus.ReceivedMessage{LockedUntil: &until})
				r.of.tasks.Stop()
				if took := time.Since(begun); took != tt.every {
					t.Errorf("renewed after %v, want %v", took, tt.every)
				}
			})
		})
	}
}
