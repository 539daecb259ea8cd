package brokertest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
)

// TLS is a listener with TLS that verifies clients' certificates, with the PEM files of a permitted
// client.
type TLS struct {
	URL             string
	CA              string // signed all certificates
	ClientCert, Key string
}

// ListenTLS makes the node listen with TLS too, until it is stopped.
func (n RabbitMQNode) ListenTLS() TLS {
	n.t.Helper()
	port, err := freePort()
	must(n.t, err)
	dir := n.t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	authority := newCertificate(n.t, "ca", nil)
	writeCertificate(n.t, in("ca"), authority)
	writeCertificate(n.t, in("server"), newCertificate(n.t, "server", &authority))
	writeCertificate(n.t, in("client"), newCertificate(n.t, "client", &authority))
	n.Control("eval", fmt.Sprintf(`{ok, _} = application:ensure_all_started(ssl), `+
		`rabbit_networking:start_ssl_listener({"127.0.0.1", %d, auto}, [{cacertfile, %q}, {certfile, %q}, {keyfile, %q}, `+
		`{verify, verify_peer}, {fail_if_no_peer_cert, true}, {versions, ['tlsv1.2']}], 2).`,
		port, in("ca.pem"), in("server.pem"), in("server-key.pem")))
	u, err := url.Parse(n.URL)
	must(n.t, err)
	u.Scheme, u.Host = "amqps", loopback(port)
	return TLS{URL: u.String(), CA: in("ca.pem"), ClientCert: in("client.pem"), Key: in("client-key.pem")}
}

// writeCertificate writes name.pem and name-key.pem.
func writeCertificate(t testing.TB, name string, c tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	must(t, err)
	for path, block := range map[string]*pem.Block{
		name + ".pem":     {Type: "CERTIFICATE", Bytes: c.Certificate[0]},
		name + "-key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		must(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
}
