package asb

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/holdfast-go/holdfast/transport"
)

// functionOf is a credential.
type functionOf func() (azcore.AccessToken, error)

func (f functionOf) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return f()
}

// A credential that hangs, panics or ends its goroutine ends no goroutine of the client library.
func TestACredentialEndsNoCaller(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for name, test := range map[string]struct {
		f    func() (azcore.AccessToken, error)
		want string
	}{
		"panic":  {func() (azcore.AccessToken, error) { panic("no") }, "panic: no"},
		"goexit": {func() (azcore.AccessToken, error) { runtime.Goexit(); return azcore.AccessToken{}, nil }, "Goexit"},
	} {
		c := newCredential(functionOf(test.f))
		if _, err := c.GetToken(t.Context(), policy.TokenRequestOptions{}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := newCredential(functionOf(func() (azcore.AccessToken, error) { <-release; return azcore.AccessToken{Token: "late"}, nil }))
		began := time.Now()
		token, err := c.GetToken(t.Context(), policy.TokenRequestOptions{})
		if took := time.Since(began); !errors.Is(err, errTokenLate) || token.Token != "" || took != credentialTimeout {
			t.Errorf("after %v: %v", took, err)
		}
		close(release)
	})
}

// A function that dials and hangs is left. Its connection is closed when it comes.
func TestAHangingWebSocketIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, dialed := make(chan struct{}), make(chan net.Conn, 1)
		n := &namespace{Transport: Transport{Namespace: "shop", WebSocket: func(context.Context, string) (net.Conn, error) {
			<-release
			own, other := net.Pipe()
			dialed <- other
			return own, nil
		}}}
		began := time.Now()
		if _, err := n.dial(t.Context()); !errors.Is(err, errNoReply) {
			t.Errorf("dial returned %v", err)
		}
		if took := time.Since(began); took != dialTimeout {
			t.Errorf("dial returned after %v", took)
		}
		close(release)
		if _, err := (<-dialed).Read(make([]byte, 1)); err == nil {
			t.Error("the late connection is open")
		}
	})
	none := &namespace{Transport: Transport{WebSocket: func(context.Context, string) (net.Conn, error) { return nil, nil }}}
	if _, err := none.dial(t.Context()); err == nil {
		t.Error("no connection is no error")
	}
}

// A function of the TLS configuration that hangs, panics or ends its goroutine ends no dial.
func TestATLSFunctionEndsNoDial(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	release := make(chan struct{})
	defer close(release)
	for name, f := range map[string]func(tls.ConnectionState) error{
		"goexit":  func(tls.ConnectionState) error { runtime.Goexit(); return nil },
		"panic":   func(tls.ConnectionState) error { panic("no") },
		"in time": func(tls.ConnectionState) error { <-release; return nil },
	} {
		n, err := newNamespace(&Transport{
			Namespace: "shop.servicebus.windows.net", Credential: &failing{}, Address: server.Listener.Addr().String(),
			TLS: &tls.Config{InsecureSkipVerify: true, VerifyConnection: f}, //nolint:gosec // f decides
		}, transport.Env{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		if name == "in time" {
			time.AfterFunc(10*time.Millisecond, func() { cancel(errors.New("no answer in time")) })
		}
		if _, err := n.socket(ctx); err == nil || !strings.Contains(strings.ToLower(err.Error()), name) {
			t.Errorf("%s: %v", name, err)
		}
		cancel(nil)
	}
}
