package callback_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/callback"
)

// Whatever a function does, its caller goes on.
func TestAFunctionEndsNoCaller(t *testing.T) {
	own := errors.New("own")
	tests := map[string]struct {
		f    func() error
		want func(error) bool
	}{
		"nil":    {func() error { return nil }, func(err error) bool { return err == nil }},
		"error":  {func() error { return own }, func(err error) bool { return err == own }}, //nolint:errorlint // the very error
		"panic":  {func() error { panic("oh") }, func(err error) bool { return err != nil && strings.Contains(err.Error(), "panic: oh") }},
		"goexit": {func() error { runtime.Goexit(); return nil }, func(err error) bool { return errors.Is(err, callback.ErrGoexit) }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := callback.Run(t.Context(), test.f); !test.want(err) {
				t.Errorf("Run returned %v", err)
			}
		})
	}
}

// A function that hangs is left alone when the context ends.
func TestAHangingFunctionIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := errors.New("no answer in time")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, late)
		defer cancel()
		release := make(chan struct{})
		if err := callback.Run(ctx, func() error { <-release; return nil }); !errors.Is(err, late) {
			t.Errorf("Run returned %v, want the cause of the context", err)
		}
		close(release)
	})
}
