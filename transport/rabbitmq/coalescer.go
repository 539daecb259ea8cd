package rabbitmq

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// maxBuffered is how many bytes may wait for the socket before publishers wait: enough for
	// hundreds of messages, and little compared to a socket's own buffer.
	maxBuffered = 256 << 10
	// keepBuffer is the largest buffer kept for reuse after a burst.
	keepBuffer = 1 << 20
	// flushTimeout bounds how long Close waits for a peer that does not read.
	flushTimeout = time.Second
)

// coalescer is a net.Conn whose writes are collected and written by one goroutine. All that is
// written during a system call is sent with the next one.
//
// Write never blocks, because the AMQP client calls it with its locks held: a peer that stopped
// reading must not delay the end of a context or of the connection. To keep the buffer bounded,
// publishers call [coalescer.Wait] first.
//
// A coalescer is safe for concurrent use.
type coalescer struct {
	net.Conn
	done chan struct{} // closed when the writing goroutine has ended

	mu      sync.Mutex // guards the fields below
	filled  sync.Cond  // buf is no longer empty, or closed
	buf     []byte
	spare   []byte
	drained chan struct{} // closed when buf was taken; nil while no call waits
	err     error         // why nothing can be written any more
}

func newCoalescer(c net.Conn) *coalescer {
	w := &coalescer{Conn: c, done: make(chan struct{})}
	w.filled.L = &w.mu
	go w.run()
	return w
}

// Write copies p and returns at once. A nil error means that p will be written unless the
// connection breaks; after that every Write fails.
func (w *coalescer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	if len(w.buf) == 0 {
		w.filled.Signal()
	}
	w.buf = append(w.buf, p...)
	return len(p), nil
}

// Wait returns when there is room for another message, the connection is broken or ctx ends; only
// the last is an error.
func (w *coalescer) Wait(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.buf) > maxBuffered && w.err == nil {
		if w.drained == nil {
			w.drained = make(chan struct{})
		}
		drained := w.drained
		w.mu.Unlock()
		select {
		case <-drained:
		case <-ctx.Done():
		}
		w.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// Close writes what is buffered, for at most a second, and closes the connection.
func (w *coalescer) Close() error {
	w.fail(net.ErrClosed)
	// An error means that the socket is gone already, and then nothing waits for it.
	_ = w.SetWriteDeadline(time.Now().Add(flushTimeout))
	<-w.done
	return w.Conn.Close()
}

func (w *coalescer) run() {
	defer close(w.done)
	for out := w.take(); len(out) > 0; out = w.take() {
		if _, err := w.Conn.Write(out); err != nil {
			w.fail(err)
			// This ends the reader at once, and not with the next heartbeat.
			_ = w.Conn.Close()
			return
		}
	}
}

// take waits for something to write. It returns nothing after Close when all is written.
func (w *coalescer) take() (out []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.buf) == 0 && w.err == nil {
		w.filled.Wait()
	}
	out, w.buf, w.spare = w.buf, w.spare[:0], nil
	if cap(out) <= keepBuffer {
		w.spare = out // not appended to before the next take, when out has been written
	}
	w.wakeWaiters()
	return out
}

func (w *coalescer) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.filled.Signal()
	w.wakeWaiters()
}

func (w *coalescer) wakeWaiters() {
	if w.drained != nil {
		close(w.drained)
		w.drained = nil
	}
}
