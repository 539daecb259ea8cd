package zaplog_test

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/telemetry/zaplog"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func ExampleNew() {
	logger := zap.NewExample() // or zap.NewProduction()
	defer logger.Sync()

	cfg := endpoint.Config{
		Name:      "billing",
		Transport: &inmemory.Transport{},
		Logger:    zaplog.New(logger.Named("billing")),
	}
	cfg.Logger.Info("about to start", "transport", fmt.Sprintf("%T", cfg.Transport))
	// Output: {"level":"info","logger":"billing","msg":"about to start","transport":"*inmemory.Transport"}
}
