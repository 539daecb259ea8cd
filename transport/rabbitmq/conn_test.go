package rabbitmq_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestErrorsOfOpenNameTheCause(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	change := func(f func(*url.URL)) string {
		u, err := url.Parse(broker)
		if err != nil {
			t.Fatal(err)
		}
		f(u)
		return u.String()
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	must(t, closed.Close())
	for name, tt := range map[string]struct{ url, want string }{
		"password":    {change(func(u *url.URL) { u.User = url.UserPassword("guest", "s3cret") }), "password refused"},
		"vhost":       {change(func(u *url.URL) { u.Path = "/absent" }), `vhost absent not found`},
		"unreachable": {change(func(u *url.URL) { u.Host = closed.Addr().String() }), "connection refused"},
		"no TLS":      {change(func(u *url.URL) { u.Scheme = "amqps" }), "5671"},
		"empty":       {"", "URL is empty"},
		"scheme":      {"http://guest:s3cret@localhost", "amqp://"},
		"port":        {"amqp://guest:s3cret/x@localhost", "percent-encoded"},
		"question":    {"amqp://guest:12?s3cret@localhost", "percent-encoded"},
		"number sign": {"amqp://guest:12#s3cret@localhost", "percent-encoded"},
		"slash":       {"amqp://guest:12/s3cret@localhost", "percent-encoded"},
		"escape":      {"amqp://guest:s3cret%zz@localhost", "percent-encoded"},
		"space":       {"amqp://guest:s3cret @localhost", "percent-encoded"},
		"parameter":   {"amqp://guest:s3cret@localhost?heartbeat=s3cret", "percent-encoded"},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := (&rabbitmq.Transport{URL: tt.url}).Open(t.Context(), transport.Env{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %q, want %q in it", err, tt.want)
			}
			if strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "guest:") {
				t.Errorf("the error %q tells the password", err)
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("it took %v", took)
			}
		})
	}
	t.Run("queue type", func(t *testing.T) {
		if _, err := (&rabbitmq.Transport{URL: broker, QueueType: "stream"}).Open(t.Context(), transport.Env{}); err == nil {
			t.Error("it was accepted")
		}
	})
}

func TestOpenGivesUpWithItsContext(t *testing.T) {
	broker := brokertest.RabbitMQ(t)
	proxy := newProxy(t, broker)
	proxy.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := (&rabbitmq.Transport{URL: proxy.URL(t, broker), Heartbeat: 2 * patience}).Open(ctx, transport.Env{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("open: %v", err)
	}
	if took := time.Since(start); took > patience {
		t.Errorf("it took %v", took)
	}
	noneLeft(t)
}

func TestLossAndRedialAreLoggedWithoutAPassword(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	proxy := newProxy(t, broker)
	var logs lockedBuffer
	tr := &rabbitmq.Transport{URL: proxy.URL(t, broker)}
	c, err := tr.Open(within(t), transport.Env{Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	queue := install(t, c, "orders")
	proxy.Refuse()
	for ctx := within(t); dispatch(c, send1(queue, message("a", "x"))) == nil; {
		if ctx.Err() != nil {
			t.Fatal("the cut is not noticed")
		}
	}
	proxy.Resume()
	for ctx := within(t); dispatch(c, send1(queue, message("a", "x"))) != nil; {
		if ctx.Err() != nil {
			t.Fatal("it does not come back")
		}
	}
	must(t, c.Close())
	text := logs.String()
	if !strings.Contains(text, "lost the connection") || !strings.Contains(text, "connected to RabbitMQ again") {
		t.Errorf("the log says\n%s", text)
	}
	if strings.Contains(text, "guest") {
		t.Errorf("the log tells the user or the password\n%s", text)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A settlement of a lost connection never reaches a newer delivery.
func TestSettleOfALostConnection(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	proxy := newProxy(t, broker)
	c := open(t, proxy.URL(t, broker), nil)
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 10)
	fill(t, c, queue, 10)
	old := nextN(t, r, 10)
	proxy.Cut()
	again := nextN(t, r, 10)
	for i, d := range old {
		settle := []func(context.Context) error{d.Complete, d.Retry, d.Release}[i%3]
		for range 2 {
			if err := settle(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
				t.Errorf("settle of the old delivery %d: %v, want ErrLeaseLost", i, err)
			}
		}
	}
	for _, d := range again {
		must(t, d.Complete(t.Context()))
	}
	waitEmpty(t, c, broker, queue)
}

// Everything fails promptly while the broker is away, and works again afterwards.
func TestBrokerAway(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	proxy := newProxy(t, broker)
	c := open(t, proxy.URL(t, broker), nil)
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 10)
	must(t, dispatch(c, send1(queue, message("a", "x"))))
	held := next(t, r)

	proxy.Refuse()
	start := time.Now()
	ctx := within(t)
	awaitLoss(t, r)
	if _, err := c.Dispatch(ctx, []transport.Operation{send1(queue, message("b", "x"))}); err == nil || ctx.Err() != nil {
		t.Errorf("dispatch: %v", err)
	}
	if err := held.Retry(ctx); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("settle: %v, want ErrLeaseLost", err)
	}
	if _, err := c.(transport.Inspector).Inspect(ctx, queue); err == nil || ctx.Err() != nil {
		t.Errorf("inspect: %v", err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("to fail took %v", took)
	}

	proxy.Resume()
	d := next(t, r)
	if got := d.Message().ID; got != "a" {
		t.Errorf("received %q", got)
	}
	must(t, d.Complete(t.Context()))
	must(t, dispatch(c, send1(queue, message("c", "x"))))
	must(t, next(t, r).Complete(t.Context()))
}

func TestASilentConnectionIsGivenUpByHeartbeat(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	proxy := newProxy(t, broker)
	c := open(t, proxy.URL(t, broker), func(tr *rabbitmq.Transport) { tr.Heartbeat = time.Second })
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 10)
	must(t, dispatch(c, send1(queue, message("a", "x"))))
	held := next(t, r)
	proxy.Pause()
	start := time.Now()
	ctx := within(t)
	awaitLoss(t, r)
	t.Logf("noticed after %v", time.Since(start))
	if err := held.Retry(ctx); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("settle: %v, want ErrLeaseLost", err)
	}
	proxy.Cut()
	proxy.Resume()
	must(t, next(t, r).Complete(t.Context()))
}

func TestCloseDoesNotWaitForASilentBroker(t *testing.T) {
	broker := brokertest.RabbitMQ(t)
	proxy := newProxy(t, broker)
	c := open(t, proxy.URL(t, broker), func(tr *rabbitmq.Transport) { tr.Heartbeat = 2 * patience })
	queue := install(t, c, "orders")
	receive(t, c, queue, 10)
	must(t, dispatch(c, send1(queue, message("before", "x")))) // asks for the right to write
	proxy.Pause()
	brokertest.Longer(t, 50*time.Millisecond, func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		if _, err := c.Dispatch(ctx, []transport.Operation{send1(queue, message("a", "x"))}); !errors.Is(err, transport.ErrOutcomeUnknown) {
			return fmt.Errorf("dispatch: %w, want ErrOutcomeUnknown", err)
		}
		return nil
	})
	start := time.Now()
	must(t, c.Close())
	if took := time.Since(start); took > patience {
		t.Errorf("Close took %v", took)
	}
	noneLeft(t)
}

// Close returns unsettled messages to the queue, and leaves nothing behind.
func TestCloseReturnsUnsettledMessages(t *testing.T) {
	broker := brokertest.RabbitMQ(t)
	c := open(t, broker, nil)
	queue := install(t, c, "orders")
	fill(t, c, queue, 40)
	r := receive(t, c, queue, 30)
	out := nextN(t, r, 20)
	for _, d := range out[5:] { // their acknowledgements wait for company still
		must(t, d.Complete(t.Context()))
	}
	must(t, c.Close())
	must(t, c.Close())
	noneLeft(t)

	if err := out[0].Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) || !errors.Is(err, transport.ErrClosed) {
		t.Errorf("settle after Close: %v", err)
	}
	if _, err := r.Receive(t.Context(), 1); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("receive after Close: %v", err)
	}
	if err := dispatch(c, send1(queue, message("a", "x"))); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("dispatch after Close: %v", err)
	}
	if _, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("open a receiver after Close: %v", err)
	}

	other := open(t, broker, nil)
	rest := receive(t, other, queue, 100)
	for _, d := range nextN(t, rest, 25) {
		must(t, d.Complete(t.Context()))
	}
	nothing(t, rest)
}

// noneLeft waits until the goroutines of the driver and of the client library have ended: the
// library's own end a moment after their connection. A test that calls it runs beside no other.
func noneLeft(t *testing.T) {
	t.Helper()
	ctx := within(t)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		var left []string
		for _, g := range strings.Split(stacks(), "\n\n") {
			if strings.Contains(g, "/rabbitmq.(*") || strings.Contains(g, "amqp091-go.") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("goroutines left behind:\n%s", strings.Join(left, "\n\n"))
		}
		<-look.C
	}
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

func TestOverTLS(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	address, trusted := terminateTLS(t, u.Host)
	u.Scheme, u.Host = "amqps", address
	if _, err := (&rabbitmq.Transport{URL: u.String()}).Open(t.Context(), transport.Env{}); err == nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate that is not trusted: %v", err)
	}
	c := open(t, u.String(), func(tr *rabbitmq.Transport) { tr.TLS = &tls.Config{RootCAs: trusted} })
	queue := install(t, c, "orders")
	must(t, dispatch(c, send1(queue, sample(100_000))))
	must(t, next(t, receive(t, c, queue, 1)).Complete(t.Context()))
}

// terminateTLS stands before a broker without TLS.
func terminateTLS(t *testing.T, broker string) (address string, trusted *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	trusted = x509.NewCertPool()
	trusted.AddCert(cert)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go join(client, broker)
		}
	}()
	return l.Addr().String(), trusted
}

func join(client net.Conn, broker string) {
	defer client.Close()
	server, err := net.Dial("tcp", broker)
	if err != nil {
		return
	}
	defer server.Close()
	go func() { _, _ = io.Copy(server, client) }()
	_, _ = io.Copy(client, server)
}
