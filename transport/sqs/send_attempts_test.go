package sqs

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/holdfast-go/holdfast/transport"
)

// serve is SQS, over HTTP: it knows every queue, and deals with what is sent as told.
func serve(t *testing.T, sent http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.Header.Get("X-Amz-Target"), "GetQueueUrl") {
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			_, _ = fmt.Fprintf(w, `{"QueueUrl":%q}`, s.URL+"/000000000000/out")
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		sent(w, r)
	})
	s.Config.SetKeepAlivesEnabled(false) // or a request may leave over a connection that is about to end
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func openServed(t *testing.T, s *httptest.Server) transport.Conn {
	t.Helper()
	c, err := (&Transport{Endpoint: s.URL, Config: &aws.Config{
		Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	}}).Open(t.Context(), transport.Env{Endpoint: "in"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// hangUp ends a connection without an answer.
func hangUp(t *testing.T, w http.ResponseWriter) {
	t.Helper()
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	_ = conn.Close()
}

// The SDK's error is that of its last attempt. What an earlier one has done it does not tell.
func TestAnEarlierAttemptMayHaveSent(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(*httptest.Server, http.ResponseWriter){
		"and AWS is not reached": nil,
		"and is throttled": func(_ *httptest.Server, w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"__type":"com.amazonaws.sqs#RequestThrottled"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s *httptest.Server
			requests := 0
			s = serve(t, func(w http.ResponseWriter, _ *http.Request) {
				requests++
				if requests > 1 {
					then(s, w)
					return
				}
				if then == nil {
					_ = s.Listener.Close()
				}
				hangUp(t, w)
			})
			_, err := openServed(t, s).Dispatch(t.Context(), []transport.Operation{send("a")})
			if !errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrUnreachable) {
				t.Errorf("%v, want ErrOutcomeUnknown", err)
			}
		})
	}
}

func TestWhatNoAttemptHasSentIsUnsent(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} { // where the queue is
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"Successful":[],"Failed":[]}`)
		})
		c := openServed(t, s)
		if known {
			if _, err := c.Dispatch(t.Context(), []transport.Operation{send("a")}); err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
		_, err := c.Dispatch(t.Context(), []transport.Operation{send("b")})
		if !errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("%v, want ErrUnreachable", err)
		}
	}
}

func TestABundleOfCertificatesThatAWSIsToHaveIsHeeded(t *testing.T) {
	s := serve(t, nil)
	secure := httptest.NewTLSServer(s.Config.Handler)
	defer secure.Close()
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(bundle, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"AWS_CA_BUNDLE": bundle, "AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
	} {
		t.Setenv(name, value)
	}
	c, err := (&Transport{Endpoint: secure.URL}).Open(t.Context(), transport.Env{Endpoint: "in"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
