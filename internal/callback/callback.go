// Package callback calls functions of the user's configuration, so that such a function ends no
// goroutine of a driver.
package callback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ErrGoexit is the error of a function that called runtime.Goexit.
var ErrGoexit = errors.New("the function ended its goroutine (runtime.Goexit)")

// Run calls f in a goroutine of its own and returns the error of f. If f panics or calls
// runtime.Goexit, Run returns an error that says so. If ctx ends first, Run returns the cause and
// does not wait for f: f must not write what the caller reads afterwards. Run takes less than a
// microsecond more than f.
func Run(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := ErrGoexit
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v", v)
			}
			done <- err
		}()
		err = f()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done: // both are ready: the result counts
		return err
	default:
		return context.Cause(ctx)
	}
}

// Open is [Run] for a function that opens a connection. If ctx ends first, the connection is closed
// when the function returns.
func Open[C io.Closer](ctx context.Context, open func() (C, error)) (conn C, err error) {
	var (
		mu     sync.Mutex // guards the rest
		none   C
		opened bool
		left   bool
	)
	err = Run(ctx, func() error {
		c, err := open()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			return err
		case left:
			return c.Close()
		}
		conn, opened = c, true
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	left = true
	switch {
	case err == nil:
		return conn, nil
	case opened: // when ctx ended
		_ = conn.Close()
	}
	return none, err
}
