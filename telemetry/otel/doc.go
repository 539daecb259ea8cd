// Package otel instruments an endpoint with OpenTelemetry: traces that follow a message from
// endpoint to endpoint, and metrics of messages, times and failures.
//
//	otel.Instrument(&cfg, otel.Options{})
//	ep, err := endpoint.New(cfg)
//
// Names follow OpenTelemetry's semantic conventions for messaging; other names begin with
// "holdfast.". docs/telemetry.md lists them. No metric has an attribute whose values grow with the
// number of messages.
//
// An endpoint that is not instrumented has no cost.
package otel
