package endpoint_test

import (
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Install may be called while Run starts: the race detector finds nothing, and both succeed.
func TestInstallBesideRun(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		e, err := endpoint.New(harness.Sales(broker))
		if err != nil {
			t.Fatal(err)
		}
		var installing sync.WaitGroup
		for range 4 {
			installing.Go(func() {
				for range 20 {
					if err := e.Install(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		r := harness.Run(t, e)
		installing.Wait()
		r.End()
	})
}
