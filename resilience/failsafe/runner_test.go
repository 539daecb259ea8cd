package failsafe_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/resilience/failsafe"
	"github.com/holdfast-go/holdfast/resilience/resiliencetest"
)

func TestTheRunnerPassesTheSuite(t *testing.T) { resiliencetest.Run(t, failsafe.NewRunner) }
