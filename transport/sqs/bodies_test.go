package sqs

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// closing is a body that has nothing more when it is closed, as the SDK's.
type closing struct {
	io.Reader
}

func (c *closing) Close() error { c.Reader = strings.NewReader(""); return nil }

func TestABodyCanBeSentAfterTheSDKHasClosedIt(t *testing.T) {
	var sending io.Reader
	c := ownBodies{&http.Client{Transport: tripper(func(r *http.Request) (*http.Response, error) {
		sending = r.Body // the answer begins before it has been read
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sqs.test/", &closing{strings.NewReader("a body")})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := r.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(sending); err != nil || string(got) != "a body" {
		t.Errorf("%q is sent, %v", got, err)
	}
}
