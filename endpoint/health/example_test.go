package health_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/endpoint/health"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func Example() {
	shop, err := endpoint.New(endpoint.Config{Name: "shop", Transport: &inmemory.Transport{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /live", health.Live(shop))
	mux.Handle("GET /ready", health.Ready(shop))

	for _, path := range []string{"/live", "/ready"} {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Println(path, answer.Code, answer.Body)
	}
	// Output:
	// /live 200 [{"endpoint":"shop","live":true,"ready":false,"reasons":["Run has not been called"]}]
	//
	// /ready 503 [{"endpoint":"shop","live":true,"ready":false,"reasons":["Run has not been called"]}]
}
