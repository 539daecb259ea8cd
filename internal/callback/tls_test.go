package callback_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/callback"
)

// A client of net/http calls the functions in goroutines whose panic would end the process.
func TestATLSFunctionEndsNoProcess(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	ends := map[string]func(){"panic: no": func() { panic("no") }, "Goexit": runtime.Goexit}
	configs := map[string]func(end func()) *tls.Config{
		"GetClientCertificate": func(end func()) *tls.Config {
			return &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				end()
				return &tls.Certificate{}, nil
			}}
		},
		"VerifyPeerCertificate": func(end func()) *tls.Config {
			return &tls.Config{VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { end(); return nil }}
		},
		"VerifyConnection": func(end func()) *tls.Config {
			return &tls.Config{VerifyConnection: func(tls.ConnectionState) error { end(); return nil }}
		},
	}
	request := func(config *tls.Config) error {
		config.InsecureSkipVerify = true
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: callback.TLS(config), DisableKeepAlives: true}}
		answer, err := client.Get(server.URL)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}
	for name, of := range configs {
		for want, end := range ends {
			if err := request(of(end)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
		if err := request(of(func() {})); err != nil {
			t.Errorf("%s, a function that returns: %v", name, err)
		}
	}
}
