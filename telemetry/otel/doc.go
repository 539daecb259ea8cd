// Package otel lets an endpoint tell OpenTelemetry what it does: traces that follow a
// message from endpoint to endpoint, and metrics of how many, how fast and how well.
//
//	otel.Instrument(&cfg, otel.Options{})
//	ep, err := endpoint.New(cfg)
//
// Names follow OpenTelemetry's semantic conventions for messaging; what these do not
// know is under "holdfast.". docs/telemetry.md lists everything. No metric has an attribute
// that grows with the number of messages.
//
// An endpoint that is not instrumented pays nothing.
package otel
