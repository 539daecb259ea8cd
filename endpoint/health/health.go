// Package health serves the health of endpoints over HTTP, for what watches a process: an
// orchestrator's probes, a load balancer, a person.
//
// It is a package of its own so that an endpoint does not bring an HTTP server along.
package health

import (
	"encoding/json"
	"net/http"

	"github.com/holdfast-go/holdfast/endpoint"
)

// Live answers whether all endpoints are live: 200, or 503 when the process is to be restarted. The
// body is a JSON array with the [endpoint.Health] of each. Reasons in it are the texts of errors,
// which name queues and hosts: do not serve it to strangers.
func Live(endpoints ...*endpoint.Endpoint) http.Handler {
	return handler(endpoints, func(h endpoint.Health) bool { return h.Live })
}

// Ready answers whether all endpoints receive and deal with messages: 200, or 503. The
// body is that of [Live].
func Ready(endpoints ...*endpoint.Endpoint) http.Handler {
	return handler(endpoints, func(h endpoint.Health) bool { return h.Ready })
}

func handler(endpoints []*endpoint.Endpoint, good func(endpoint.Health) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := http.StatusOK
		all := make([]endpoint.Health, len(endpoints))
		for i, e := range endpoints {
			if all[i] = e.Health(); !good(all[i]) {
				status = http.StatusServiceUnavailable
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(all) // who asked has gone: nobody to tell
	})
}
