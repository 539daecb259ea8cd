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

// beside calls f in a goroutine beside the endpoint. end ends the context of f, and returns when f
// has returned.
func beside(ctx context.Context, f func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// runBackground calls the functions of Config.Background, and returns when the functions have
// returned.
func runBackground(ctx context.Context, l *launch) {
	var wg sync.WaitGroup
	for i, f := range l.e.cfg.Background {
		wg.Go(func() {
			defer awaited(ctx, l.Calls, fmt.Sprintf("function %d of Config.Background", i+1))()
			callInBackground(ctx, l.e, f)
		})
	}
	wg.Wait()
}

// awaited has the watch count a call that begins now. The watch counts from the end of ctx on, when
// Run waits for the call. The caller calls returned at the end of the call.
func awaited(ctx context.Context, calls *overdue.Watch, name string) (returned func()) {
	var call overdue.Call
	call.EnterFunction(&name)
	goroutine := goroutines.ID()
	begun := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(begun)
		calls.Begin(&call, "", "", goroutine)
	})
	return func() {
		if !stop() {
			<-begun
			calls.End(&call)
		}
	}
}

// callInBackground calls a function of Config.Background. If the function panics, the panic is
// logged.
func callInBackground(ctx context.Context, e *Endpoint, f func(context.Context, *Endpoint)) {
	defer func() {
		if v := recover(); v != nil {
			e.cfg.Logger.ErrorContext(ctx, "a function of Config.Background panicked and is not called again",
				slog.String("panic", panics.Text(v)))
		}
	}()
	f(ctx, e)
}
