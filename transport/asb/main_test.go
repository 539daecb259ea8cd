package asb_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestMain(m *testing.M) {
	brokertest.Parallel("12")
	m.Run()
}
