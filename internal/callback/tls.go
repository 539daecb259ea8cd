package callback

import (
	"context"
	"crypto/tls"
	"crypto/x509"
)

// TLS returns a copy of config for a client of package net/http, which calls the functions of
// config in goroutines of its own: if a function panics or calls runtime.Goexit, the handshake
// fails with an error that says so. The copy of nil is nil.
func TLS(config *tls.Config) *tls.Config {
	if config == nil {
		return nil
	}
	safe := config.Clone()
	if f := config.GetClientCertificate; f != nil {
		safe.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			var answer *tls.Certificate
			err := Run(info.Context(), func() (err error) {
				answer, err = f(info)
				return err
			})
			if err != nil { // a call that was left may write the answer
				return nil, err
			}
			return answer, nil
		}
	}
	if f := config.VerifyPeerCertificate; f != nil {
		safe.VerifyPeerCertificate = func(raw [][]byte, verified [][]*x509.Certificate) error {
			return Run(context.Background(), func() error { return f(raw, verified) })
		}
	}
	if f := config.VerifyConnection; f != nil {
		safe.VerifyConnection = func(s tls.ConnectionState) error {
			return Run(context.Background(), func() error { return f(s) })
		}
	}
	return safe
}
