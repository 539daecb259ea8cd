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

// closing is a connection that reports its end.
type closing struct{ closed chan struct{} }

func (c *closing) Close() error {
	close(c.closed)
	return nil
}

// A connection that comes too late is closed.
func TestALateConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, conn := errors.New("own"), &closing{make(chan struct{})}
		if got, err := callback.Open(t.Context(), func() (*closing, error) { return conn, nil }); got != conn || err != nil {
			t.Errorf("Open returned %v, %v", got, err)
		}
		if got, err := callback.Open(t.Context(), func() (*closing, error) { return nil, own }); got != nil || err != own { //nolint:errorlint // the very error
			t.Errorf("Open returned %v, %v", got, err)
		}
		late := errors.New("no answer in time")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, late)
		defer cancel()
		release := make(chan struct{})
		if got, err := callback.Open(ctx, func() (*closing, error) { <-release; return conn, nil }); got != nil || !errors.Is(err, late) {
			t.Errorf("Open returned %v, %v", got, err)
		}
		synctest.Wait()
		select {
		case <-conn.closed:
			t.Error("closed before it came")
		default:
		}
		close(release)
		<-conn.closed
	})
}
