package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/internal/goroutines"
)

// background starts the functions of Config.Background. The result ends their context and returns
// when they have.
func (l *live) background(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	for i, f := range l.e.cfg.Background {
		wg.Go(func() {
			defer l.awaited(ctx, fmt.Sprintf("function %d of Config.Background", i+1))()
			l.inBackground(ctx, f)
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// awaited has the watch count the call that begins now, from the end of ctx on: then Run waits for
// the call. The caller calls returned at the end of the call.
func (l *live) awaited(ctx context.Context, name string) (returned func()) {
	var call overdue.Call
	call.EnterFunction(&name)
	goroutine := goroutines.ID()
	begun := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(begun)
		l.Calls.Begin(&call, "", "", goroutine)
	})
	return func() {
		if !stop() {
			<-begun
			l.Calls.End(&call)
		}
	}
}

// inBackground calls one function, which may panic.
func (l *live) inBackground(ctx context.Context, f func(context.Context, *Endpoint)) {
	defer func() {
		if v := recover(); v != nil {
			l.e.cfg.Logger.ErrorContext(ctx, "a function of Config.Background panicked and is not called again",
				slog.String("panic", panics.Text(v)))
		}
	}()
	f(ctx, l.e)
}
