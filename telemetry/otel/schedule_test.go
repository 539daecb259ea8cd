package otel_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestARunOfAScheduleIsFoundByItsJob(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		var run schedule.Run
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			run, _ = schedule.RunOf(ctx)
			return nil
		}))
		cfg.Outbox = &inmemory.Transport{}
		s, err := schedule.New(schedule.Config{Schedules: []schedule.Schedule{{Name: "nightly", Every: time.Minute, Message: harness.PlaceOrder{}}}})
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(&cfg)
		tel.start(cfg)
		time.Sleep(61 * time.Second)
		synctest.Wait()
		want := []string{
			"holdfast.job=" + run.JobID, "holdfast.job.schedule=nightly",
			"holdfast.job.due=" + run.Due.UTC().Format(time.RFC3339Nano),
		}
		runs := 0
		for _, span := range tel.named("process sales") {
			got := told(span.Attributes())
			if !slices.Contains(got, want[0]) {
				if slices.ContainsFunc(got, func(a string) bool { return strings.HasPrefix(a, "holdfast.job") }) {
					t.Errorf("a message that is no job has the attributes %q", got)
				}
				continue
			}
			runs++
			for _, attr := range want {
				if !slices.Contains(got, attr) {
					t.Errorf("attributes are %q: want %s", got, attr)
				}
			}
		}
		if runs != 1 || run.JobID == "" {
			t.Errorf("%d spans of the run %+v", runs, run)
		}
	})
}
