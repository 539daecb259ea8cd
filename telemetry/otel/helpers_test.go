package otel_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/telemetry/otel"
)

// done is a handler with nothing to do.
var done = endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil })

// failing is a handler that returns err.
func failing(err error) endpoint.Handler {
	return endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return err })
}

// telemetry is where the tests' spans and metrics go.
type telemetry struct {
	t       *testing.T
	spans   *tracetest.SpanRecorder
	traces  *sdktrace.TracerProvider
	reader  *sdkmetric.ManualReader
	options otel.Options
}

func newTelemetry(t *testing.T) *telemetry {
	t.Helper()
	tel := &telemetry{t: t, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	tel.traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tel.spans))
	tel.options = otel.Options{
		TracerProvider: tel.traces,
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(tel.reader)),
	}
	return tel
}

// running is an instrumented endpoint.
type running struct {
	*harness.Running
	t *testing.T
}

// start instruments cfg and runs an endpoint of it until the test is over.
func (tel *telemetry) start(cfg endpoint.Config) *running {
	tel.t.Helper()
	otel.Instrument(&cfg, tel.options)
	return &running{harness.Start(tel.t, cfg), tel.t}
}

// send sends a message with a context, and waits until the message is handled.
func (r *running) send(ctx context.Context, m any, opts ...endpoint.SendOption) {
	r.t.Helper()
	if err := r.Send(ctx, m, opts...); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

// tree draws the spans, each below its parent, in the order in which they began. A span that
// starts a trace and links to another says so.
func (tel *telemetry) tree() string {
	var b strings.Builder
	var all []sdktrace.ReadOnlySpan
	for _, s := range tel.spans.Started() {
		all = append(all, s)
	}
	ended := tel.spans.Ended()
	var draw func(parent sdktrace.ReadOnlySpan, depth int)
	draw = func(parent sdktrace.ReadOnlySpan, depth int) {
		for _, s := range all {
			isRoot := !slices.ContainsFunc(all, func(p sdktrace.ReadOnlySpan) bool {
				return p.SpanContext().SpanID() == s.Parent().SpanID()
			})
			if parent == nil && !isRoot || parent != nil && s.Parent().SpanID() != parent.SpanContext().SpanID() {
				continue
			}
			fmt.Fprintf(&b, "%s%s (%v)", strings.Repeat("  ", depth), s.Name(), s.SpanKind())
			for _, l := range s.Links() {
				fmt.Fprintf(&b, " -> %s", nameOf(all, l))
			}
			if !slices.ContainsFunc(ended, func(e sdktrace.ReadOnlySpan) bool {
				return e.SpanContext().SpanID() == s.SpanContext().SpanID()
			}) {
				b.WriteString(" never ended")
			}
			b.WriteByte('\n')
			draw(s, depth+1)
		}
	}
	draw(nil, 0)
	return b.String()
}

func nameOf(all []sdktrace.ReadOnlySpan, l sdktrace.Link) string {
	for _, s := range all {
		if s.SpanContext().SpanID() == l.SpanContext.SpanID() {
			return s.Name()
		}
	}
	return "outside"
}

// named are the ended spans of that name.
func (tel *telemetry) named(name string) (found []sdktrace.ReadOnlySpan) {
	for _, s := range tel.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

// only is the one ended span of that name.
func (tel *telemetry) only(name string) sdktrace.ReadOnlySpan {
	tel.t.Helper()
	found := tel.named(name)
	if len(found) != 1 {
		tel.t.Fatalf("%d spans %q, want 1; there are:\n%s", len(found), name, tel.tree())
	}
	return found[0]
}

// told is what attributes say, as text: "key=value", in the order of keys.
func told(attrs []attribute.KeyValue) []string {
	set := attribute.NewSet(attrs...)
	var list []string
	for _, a := range set.ToSlice() {
		list = append(list, fmt.Sprintf("%s=%v", a.Key, a.Value.AsInterface()))
	}
	return list
}

// metrics are all data points now: "name{key=value,…}" and the sum, count or gauge.
func (tel *telemetry) metrics() map[string]float64 {
	tel.t.Helper()
	var rm metricdata.ResourceMetrics
	if err := tel.reader.Collect(context.Background(), &rm); err != nil {
		tel.t.Fatal(err)
	}
	points := map[string]float64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			add := func(attrs attribute.Set, suffix string, v float64) {
				points[m.Name+suffix+"{"+strings.Join(told(attrs.ToSlice()), ",")+"}"] = v
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, "", float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, "", float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, "", p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, ".count", float64(p.Count))
					add(p.Attributes, ".sum", p.Sum)
				}
			default:
				tel.t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	return points
}

// about are the data points whose name and attributes begin with prefix.
func (tel *telemetry) about(prefix string) map[string]float64 {
	tel.t.Helper()
	points := tel.metrics()
	for name := range points {
		if !strings.HasPrefix(name, prefix) {
			delete(points, name)
		}
	}
	return points
}
