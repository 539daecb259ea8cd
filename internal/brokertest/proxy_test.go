package brokertest_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// echo is a server that sends back what it reads.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// answering answers all that it hears with an exclamation mark, after it has passed it on.
func answering(t *testing.T, heard chan<- string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				buf := make([]byte, 100)
				for n, err := c.Read(buf); err == nil; n, err = c.Read(buf) {
					heard <- string(buf[:n])
					_, _ = c.Write([]byte("!"))
				}
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *brokertest.Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

func hearNothing(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v; want silence", n, err)
	}
}

func TestProxyPassesBytesAndTheirEnd(t *testing.T) {
	c := dial(t, brokertest.NewProxy(t, echo(t)))
	say(t, c, "hello")
	hear(t, c, "hello")
	say(t, c, "bye")
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); err != nil || string(rest) != "bye" {
		t.Fatalf("at the end: %q, %v", rest, err)
	}
}

func TestProxyCutResetsOpenConnectionsOnly(t *testing.T) {
	p := brokertest.NewProxy(t, echo(t))
	c := dial(t, p)
	say(t, c, "a")
	hear(t, c, "a")
	p.Cut()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("a cut connection ended with %v, want a reset", err)
	}
	c = dial(t, p)
	say(t, c, "b")
	hear(t, c, "b")
	if n := p.Connections(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

func TestProxyCutsConnectionsAtAText(t *testing.T) {
	p := brokertest.NewProxy(t, echo(t))
	p.CutAt("quit", 2)
	other := dial(t, p)
	say(t, other, "hello")
	hear(t, other, "hello")
	for range 2 {
		c := dial(t, p)
		say(t, c, "hello")
		hear(t, c, "hello")
		say(t, c, "I quit now")
		if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Fatalf("%d bytes and %v, want a reset", n, err)
		}
	}
	say(t, other, "I quit too")
	hear(t, other, "I quit too")
}

func TestProxyCutsConnectionsAtAnAnswer(t *testing.T) {
	heard := make(chan string, 10)
	p := brokertest.NewProxy(t, answering(t, heard))
	p.CutAtAnswer("quit", 1)
	c, other := dial(t, p), dial(t, p)
	say(t, c, "hello")
	hear(t, c, "!")
	<-heard
	say(t, c, "I quit now")
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("%d bytes and %v, want a reset", n, err)
	}
	if text := <-heard; text != "I quit now" {
		t.Errorf("%q was forwarded", text)
	}
	say(t, other, "I quit too")
	hear(t, other, "!")
}

func TestProxyPauseHoldsBytesUntilResume(t *testing.T) {
	p := brokertest.NewProxy(t, echo(t))
	c := dial(t, p)
	say(t, c, "a")
	hear(t, c, "a")
	p.Pause()
	say(t, c, "held")
	hearNothing(t, c)
	late := dial(t, p)
	say(t, late, "late")
	hearNothing(t, late)
	p.Resume()
	hear(t, c, "held")
	hear(t, late, "late")
}

func TestProxyCutEndsAPausedConnection(t *testing.T) {
	p := brokertest.NewProxy(t, echo(t))
	c := dial(t, p)
	p.Pause()
	say(t, c, "lost")
	hearNothing(t, c)
	p.Cut()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a cut connection ended with %v, want a reset", err)
	}
}

func TestProxyRefusesUntilResume(t *testing.T) {
	p := brokertest.NewProxy(t, echo(t))
	p.Refuse()
	// The reset may come before or after the dial has returned.
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatal("a refused connection was let through")
		}
		_ = c.Close()
	}
	p.Resume()
	c := dial(t, p)
	say(t, c, "a")
	hear(t, c, "a")
}

func TestProxyDelays(t *testing.T) {
	p := brokertest.NewProxy(t, echo(t))
	c := dial(t, p)
	const d = 50 * time.Millisecond
	p.Delay(d)
	start := time.Now()
	say(t, c, "a")
	hear(t, c, "a")
	if took := time.Since(start); took < 2*d {
		t.Errorf("there and back in %v, want at least %v", took, 2*d)
	}
}
