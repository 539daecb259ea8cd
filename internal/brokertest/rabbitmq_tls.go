package brokertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// TLS is a listener with TLS that verifies clients' certificates, with the PEM files of a permitted client.
type TLS struct {
	URL             string
	CA              string // signed all certificates
	ClientCert, Key string
}

// ListenTLS makes the node listen with TLS too, until it is stopped.
func (n RabbitMQNode) ListenTLS() TLS {
	n.t.Helper()
	port, err := freePort()
	if err != nil {
		n.t.Fatal(err)
	}
	dir := n.t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := writeCertificates(in); err != nil {
		n.t.Fatal(err)
	}
	n.Control("eval", fmt.Sprintf(`{ok, _} = application:ensure_all_started(ssl), `+
		`rabbit_networking:start_ssl_listener({"127.0.0.1", %d, auto}, [{cacertfile, %q}, {certfile, %q}, {keyfile, %q}, `+
		`{verify, verify_peer}, {fail_if_no_peer_cert, true}, {versions, ['tlsv1.2']}], 2).`,
		port, in("ca.pem"), in("server.pem"), in("server-key.pem")))
	u, err := url.Parse(n.URL)
	if err != nil {
		n.t.Fatal(err)
	}
	u.Scheme, u.Host = "amqps", loopback(port)
	return TLS{URL: u.String(), CA: in("ca.pem"), ClientCert: in("client.pem"), Key: in("client-key.pem")}
}

// writeCertificates writes certificates of an authority, a server and a client, valid for an hour.
func writeCertificates(in func(name string) string) error {
	ca, caKey, err := writeCertificate(in, "ca", nil, nil)
	if err != nil {
		return err
	}
	for _, name := range []string{"server", "client"} {
		if _, _, err := writeCertificate(in, name, ca, caKey); err != nil {
			return err
		}
	}
	return nil
}

// writeCertificate writes name.pem and name-key.pem. Without an authority the certificate is an authority's.
func writeCertificate(in func(string) string, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: ca == nil, BasicConstraintsValid: true,
	}
	if ca == nil {
		ca, caKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	if err := writePEM(in(name+".pem"), "CERTIFICATE", der); err != nil {
		return nil, nil, err
	}
	if err := writePEM(in(name+"-key.pem"), "EC PRIVATE KEY", private); err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
