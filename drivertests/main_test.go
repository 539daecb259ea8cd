package drivertests

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestMain(m *testing.M) {
	brokertest.Parallel("6")
	m.Run()
}
