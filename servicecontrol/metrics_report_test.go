package servicecontrol

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// The values are added without an endpoint: the race detector crashes over 30,000 messages in one
// synctest bubble (Go 1.26, tsan_rtl.cpp: CHECK failed).
func TestValuesThatAreDroppedAreCountedInTheLog(t *testing.T) {
	const queue = "Monitoring"
	var broker inmemory.Transport
	conn, err := broker.Open(t.Context(), transport.Env{Logger: harness.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var log harness.Log
	r := &reporter{
		Config: Config{MetricsQueue: queue}, endpoint: "Sales", metrics: newMetrics(),
		env: transport.Env{Logger: slog.New(slog.NewTextHandler(&log, nil))},
	}
	s := &sender{reporter: r, conn: conn}
	report := &metricsReport{sender: s, failures: s.failures("metrics")}
	const values = maxWaiting + maxBatch/2
	for range values {
		r.metrics.processing.add(time.Now(), 1, "Shop.PlaceOrder")
	}
	r.metrics.critical.add(time.Now(), 1, "Shop.PlaceOrder")
	if sent := report.flush(t.Context()); sent || len(log.Lines("dropped")) != 0 {
		t.Errorf("values were sent without a queue, or lost: %s", &log)
	}
	broker.CreateQueues(queue)
	for range 2 { // the second one logs nothing
		if !report.flush(t.Context()) {
			t.Errorf("not all values were sent: %s", &log)
		}
	}
	kept := 0
	for _, m := range broker.Messages(queue) {
		if m.Headers.Get(metricType) == "ProcessingTime" {
			got, err := decode(m.Body)
			if err != nil {
				t.Fatal(err)
			}
			kept += len(got)
		}
	}
	lines := log.Lines("metrics were dropped")
	want := fmt.Sprintf("metric=ProcessingTime values=%d\n", values-kept)
	if kept == 0 || kept == values || len(lines) != 1 || !strings.HasSuffix(lines[0], want) {
		t.Errorf("%d values of %d were kept, logged %q", kept, values, lines)
	}
}
