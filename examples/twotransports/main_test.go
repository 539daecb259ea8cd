package main

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

func Example() {
	main()
	// Output:
	// orders: attempt 1
	// orders: attempt 2
	// charging: attempt 1
	// charging: attempt 2
	// charging: attempt 3
	// charging: attempt 4
}

// It returns without an error when the charge has succeeded at its last attempt.
func TestTheSecondTransportMayBeRabbitMQ(t *testing.T) {
	second := &rabbitmq.Transport{URL: brokertest.RabbitMQ(t)}
	if err := run(t.Context(), &sqlite.Transport{Path: filepath.Join(t.TempDir(), "orders.db")}, second); err != nil {
		t.Error(err)
	}
}
