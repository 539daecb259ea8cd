package rabbitmq_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// A server that shows a certificate and asks for one.
func TestOverTLSWithCertificatesOnBothSides(t *testing.T) {
	t.Parallel()
	listener := rabbitmq.OwnNode(t).ListenTLS()
	cert, err := tls.LoadX509KeyPair(listener.ClientCert, listener.Key)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(listener.CA)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)

	for name, tt := range map[string]struct {
		url    string
		config *tls.Config
		want   string
	}{
		"no trust":       {listener.URL, &tls.Config{Certificates: []tls.Certificate{cert}}, "RootCAs"},
		"no certificate": {listener.URL, &tls.Config{RootCAs: trusted}, "certfile"},
		"another name": {
			listener.URL, &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{cert}, ServerName: "rabbit.example"}, "rabbit.example",
		},
		"without TLS": {strings.Replace(listener.URL, "amqps:", "amqp:", 1), nil, "amqps://"},
	} {
		_, err := (&rabbitmq.Transport{URL: tt.url, TLS: tt.config}).Open(within(t), transport.Env{})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q in it", name, err, tt.want)
		}
	}

	c := open(t, listener.URL, func(tr *rabbitmq.Transport) {
		tr.TLS = &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{cert}}
	})
	queue := install(t, c, "orders")
	must(t, dispatch(c, send1(queue, sample(100_000))))
	must(t, next(t, receive(t, c, queue, 1)).Complete(t.Context()))

	files := listener.URL + "?cacertfile=" + listener.CA + "&certfile=" + listener.ClientCert + "&keyfile=" + listener.Key
	must(t, dispatch(open(t, files, nil), send1(queue, message("a", "x"))))
}

// A function of the TLS configuration that ends its goroutine or hangs ends neither Open nor the
// goroutine that connects.
func TestATLSFunctionThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	release := make(chan struct{})
	defer close(release)
	for name, f := range map[string]func(tls.ConnectionState) error{
		"goexit":            func(tls.ConnectionState) error { runtime.Goexit(); return nil },
		"panic":             func(tls.ConnectionState) error { panic("no") },
		"no answer in time": func(tls.ConnectionState) error { <-release; return nil },
	} {
		tr := &rabbitmq.Transport{
			URL: "amqps://guest:guest@" + server.Listener.Addr().String(),
			TLS: &tls.Config{InsecureSkipVerify: true, VerifyConnection: f}, //nolint:gosec // f decides
		}
		if _, err := tr.Open(within(t), transport.Env{}); err == nil || !strings.Contains(strings.ToLower(err.Error()), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
