package health_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/endpoint/health"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func ask(t *testing.T, h http.Handler) (int, []endpoint.Health) {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
	var all []endpoint.Health
	if err := json.Unmarshal(answer.Body.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	return answer.Code, all
}

func TestOneEndpointThatHasEndedIsTheProcesssHealth(t *testing.T) {
	broker := &inmemory.Transport{}
	var all []*endpoint.Endpoint
	var stops []func()
	for _, name := range []string{"a", "b"} {
		e, err := endpoint.New(endpoint.Config{Name: name, Transport: broker, Install: true, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		if err := e.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
		stops = append(stops, func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	for _, h := range []http.Handler{health.Live(all...), health.Ready(all...)} {
		if code, got := ask(t, h); code != http.StatusOK || len(got) != 2 || !got[0].Ready || got[1].Endpoint != "b" {
			t.Errorf("running: %d %v", code, got)
		}
	}
	stops[1]()
	for _, h := range []http.Handler{health.Live(all...), health.Ready(all...)} {
		code, got := ask(t, h)
		if diff := cmp.Diff([]string{"Run has returned"}, got[1].Reasons); code != http.StatusServiceUnavailable || diff != "" || !got[0].Ready {
			t.Errorf("after the end: %d %v %s", code, got, diff)
		}
	}
	stops[0]()
}
