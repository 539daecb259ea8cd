package brokertest

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
)

// tlsHost is the name in a test's certificate.
const tlsHost = "holdfast.servicebus.test"

// TLS returns the address of a listener that ends TLS for a namespace of the stand-in, as the
// service does, with a certificate of host that config trusts. Tokens of identities need such
// connections. It closes with the test.
func (n *ServiceBusNamespace) TLS(t testing.TB) (host, address string, config *tls.Config) {
	t.Helper()
	certificate := newCertificate(t, tlsHost, nil)
	roots := x509.NewCertPool()
	roots.AddCert(certificate.Leaf)
	server := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	l, err := tls.Listen("tcp", loopback(0), server)
	must(t, err)
	broker, _ := servicebusAddress(n.ConnectionString)
	return tlsHost, newProxy(t, l, broker).Addr(), &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}
