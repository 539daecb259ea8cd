package transporttest_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

// This is the test of a driver.
func ExampleRun() {
	_ = func(t *testing.T) { // TestConformance
		transporttest.Run(t, transporttest.Harness{
			Open:   func(testing.TB) transport.Transport { return &inmemory.Transport{} },
			Bubble: true, // only for drivers that do no I/O
		})
	}
}

func ExampleRules() {
	for _, r := range transporttest.Rules() {
		if r.Name == "settle-complete" {
			fmt.Printf("%s: %s\n", r.Theme, r.Rule)
		}
	}
	// Output: Settling: A completed message is deleted, also for connections that are opened later.
}
