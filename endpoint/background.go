package endpoint

import (
	"context"
	"log/slog"
	"sync"
)

// background starts the functions of Config.Background. The result ends their context and returns when they have.
func (l *live) background(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	for _, f := range l.e.cfg.Background {
		wg.Go(func() { l.inBackground(ctx, f) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// inBackground calls one function, which may panic.
func (l *live) inBackground(ctx context.Context, f func(context.Context, *Endpoint)) {
	defer func() {
		if v := recover(); v != nil {
			l.e.cfg.Logger.ErrorContext(ctx, "a function of Config.Background panicked and is not called again",
				slog.String("panic", panicText(v)))
		}
	}()
	f(ctx, l.e)
}
