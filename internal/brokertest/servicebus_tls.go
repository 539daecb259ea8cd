package brokertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"
)

// tlsHost is the name in a test's certificate.
const tlsHost = "holdfast.servicebus.test"

// TLS returns the address of a listener that ends TLS for a namespace of the stand-in, as the service does, with a
// certificate of host that config trusts. Tokens of identities need such connections. It closes with the test.
func (n *ServiceBusNamespace) TLS(t testing.TB) (host, address string, config *tls.Config) {
	t.Helper()
	certificate, roots := selfSigned(t)
	l, err := tls.Listen("tcp", loopback(0), &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	broker, _ := servicebusAddress(n.ConnectionString)
	d := &tlsListener{to: broker, open: make(map[net.Conn]struct{})}
	d.passing.Go(func() { d.accept(l) })
	t.Cleanup(func() {
		_ = l.Close()
		d.close()
	})
	return tlsHost, l.Addr().String(), &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

func selfSigned(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{tlsHost},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	own, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(own)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// tlsListener forwards connections to a broker without TLS.
type tlsListener struct {
	to      string
	passing sync.WaitGroup

	mu   sync.Mutex // guards open
	open map[net.Conn]struct{}
}

func (d *tlsListener) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		broker, err := net.Dial("tcp", d.to) //nolint:noctx // of this machine
		if err != nil {
			_ = client.Close()
			continue
		}
		d.passing.Go(func() { d.pass(client, broker) })
		d.passing.Go(func() { d.pass(broker, client) })
	}
}

// pass copies one direction, and ends both when that ends.
func (d *tlsListener) pass(from, to net.Conn) {
	d.mu.Lock()
	d.open[from] = struct{}{}
	d.mu.Unlock()
	_, _ = io.Copy(to, from) // an error ends the connection as its end does
	_ = from.Close()
	_ = to.Close()
	d.mu.Lock()
	delete(d.open, from)
	d.mu.Unlock()
}

func (d *tlsListener) close() {
	d.mu.Lock()
	for c := range d.open {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.passing.Wait()
}
