package rabbitmq

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slowConn is a socket whose writes wait for a signal.
type slowConn struct {
	net.Conn
	writes atomic.Int64
	may    chan struct{}
}

func (c *slowConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	<-c.may
	return c.Conn.Write(p)
}

func TestWritesDuringAWriteLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		slow := &slowConn{Conn: client, may: make(chan struct{})}
		w := newCoalescer(slow)
		received := make(chan []byte)
		go func() {
			b, _ := io.ReadAll(server)
			received <- b
		}()
		write(t, w, "first,")
		synctest.Wait() // it is being written
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { write(t, w, "x") })
		}
		wg.Wait()
		close(slow.may)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got, want := string(<-received), "first,"+string(bytes.Repeat([]byte("x"), 100)); got != want {
			t.Errorf("received %q, want %q", got, want)
		}
		if n := slow.writes.Load(); n != 2 {
			t.Errorf("%d writes, want 2", n)
		}
	})
}

func write(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("write: %d, %v", n, err)
	}
}

func TestAFullBufferMakesPublishersWaitButNotWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe() // not read yet
		w := newCoalescer(client)
		write(t, w, "taken by the writing goroutine")
		synctest.Wait()
		write(t, w, string(make([]byte, maxBuffered+1)))
		write(t, w, "still accepted")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait on a full buffer: %v", err)
		}
		waited := make(chan error)
		go func() { waited <- w.Wait(t.Context()) }()
		synctest.Wait()
		go func() { _, _ = io.Copy(io.Discard, server) }()
		if err := <-waited; err != nil {
			t.Errorf("Wait when there is room again: %v", err)
		}
		_ = w.Close()
	})
}

func TestCloseDoesNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		w := newCoalescer(client)
		write(t, w, "never read")
		waited := make(chan error)
		write(t, w, string(make([]byte, 2*maxBuffered)))
		go func() { waited <- w.Wait(t.Context()) }()
		start := time.Now()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > flushTimeout {
			t.Errorf("Close took %v", took)
		}
		if err := <-waited; err != nil {
			t.Errorf("Wait during Close: %v", err)
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write after Close: %v", err)
		}
		if _, err := server.Read(make([]byte, 1)); err == nil {
			t.Error("the connection is still open")
		}
	})
}

func TestABrokenConnectionFailsWritesAndWakesTheReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		w := newCoalescer(client)
		_ = server.Close()
		write(t, w, "lost")
		if _, err := w.Read(make([]byte, 1)); err == nil {
			t.Error("Read goes on")
		}
		synctest.Wait()
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("Write goes on")
		}
		if err := w.Wait(t.Context()); err != nil {
			t.Errorf("Wait on a broken connection: %v", err)
		}
		_ = w.Close()
	})
}
