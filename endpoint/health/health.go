// Package health serves the health of endpoints over HTTP, for an orchestrator's probes, a load
// balancer or a person.
//
// It is a separate package so that package endpoint does not import net/http.
package health

import (
	"encoding/json"
	"net/http"

	"github.com/holdfast-go/holdfast/endpoint"
)

// Live returns a handler that answers 200 if all endpoints are live, and 503 if the process must be
// restarted. The body is a JSON array with the [endpoint.Health] of each. The reasons in it are
// texts of errors, which name queues and hosts: do not serve it publicly.
func Live(endpoints ...*endpoint.Endpoint) http.Handler {
	return handler(endpoints, func(h endpoint.Health) bool { return h.Live })
}

// Ready returns a handler that answers 200 if all endpoints receive and process messages, and 503
// otherwise. The body is that of [Live].
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
		_ = json.NewEncoder(w).Encode(all) // the client has gone
	})
}
