package schedule_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// sendMail is a message that the endpoints of these tests do not handle.
type sendMail struct{}

// unhandled returns a scheduler and the configuration of an endpoint that registers sendMail and
// has no handler for it.
func unhandled(t *testing.T, broker *inmemory.Transport, c schedule.Config) (*schedule.Scheduler, endpoint.Config) {
	t.Helper()
	s, err := schedule.New(c)
	if err != nil {
		t.Fatal(err)
	}
	cfg := endpoint.Config{
		Name: "billing", Transport: broker, Install: true, Transactions: endpoint.SendsAtomicWithReceive,
		Messages: []endpoint.Message{endpoint.Command[buildReport]("Shop.BuildReport"), endpoint.Command[sendMail]("Shop.SendMail")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, session *endpoint.Session, _ buildReport) error {
			_, err := s.Enqueue(ctx, session, sendMail{})
			return err
		})},
	}
	s.Apply(&cfg)
	return s, cfg
}

// Each occurrence would go to the error queue.
func TestAScheduleWithoutAHandlerIsRefused(t *testing.T) {
	for name, m := range map[string]any{"a value": sendMail{}, "a pointer": &sendMail{}} {
		_, cfg := unhandled(t, &inmemory.Transport{}, schedule.Config{Schedules: []schedule.Schedule{
			{Name: "reports", Cron: "0 * * * *", Message: buildReport{}}, {Name: "mails", Cron: "0 * * * *", Message: m},
		}})
		_, err := endpoint.New(cfg)
		if err == nil || !strings.Contains(err.Error(), "sendMail to the endpoint's own queue: no handler") || strings.Contains(err.Error(), "buildReport") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, cfg := unhandled(t, &inmemory.Transport{}, schedule.Config{Schedules: []schedule.Schedule{{Name: "x", Cron: "0 * * * *", Message: chargeOrder{}}}})
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "not registered") {
		t.Errorf("a message that is not registered: %v", err)
	}
}

// A job without a handler would be queued, and then go to the error queue.
func TestAJobWithoutAHandlerIsRefused(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		s, cfg := unhandled(t, broker, schedule.Config{})
		cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = recoverability.None, recoverability.None
		r := harness.Start(t, cfg)
		if _, err := s.EnqueueFrom(t.Context(), r.Endpoint, sendMail{}); err == nil || !strings.Contains(err.Error(), "no handler") {
			t.Errorf("outside a handler: %v", err)
		}
		r.MustSend(buildReport{}, endpoint.To("billing"))
		synctest.Wait()
		r.End()
		failed := broker.Messages("error")
		if len(failed) != 1 || !strings.Contains(failed[0].Headers.Get("NServiceBus.ExceptionInfo.Message"), "no handler") {
			t.Errorf("%d messages in the error queue, want that whose handler enqueues", len(failed))
		}
	})
}
