package postgres

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestMain(m *testing.M) {
	brokertest.Parallel("8")
	os.Exit(m.Run())
}
