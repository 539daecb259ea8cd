package sqs_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// patience bounds each wait for the stand-in: the end of a test that hangs.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	brokertest.Parallel("12")
	m.Run()
}
