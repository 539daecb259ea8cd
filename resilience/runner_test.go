package resilience_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/resilience/resiliencetest"
)

func TestThePlainRunnerPassesTheSuite(t *testing.T) { resiliencetest.Run(t, resilience.NewRunner) }
