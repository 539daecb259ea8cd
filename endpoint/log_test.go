package endpoint_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// lines notes the log of an endpoint: level, the attribute logger and the text.
type lines struct{ *harness.Tally }

func (lines) Enabled(context.Context, slog.Level) bool { return true }
func (l lines) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l lines) WithGroup(string) slog.Handler          { return l }
func (l lines) Handle(_ context.Context, r slog.Record) error {
	logger := ""
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "logger" {
			logger = " " + a.Value.String()
		}
		return true
	})
	l.Add(r.Level.String() + logger + ": " + r.Message)
	return nil
}

// The example of NServiceBus's documentation on retry logging: 3 immediate and 2 delayed retries
// of a handler that logs its attempts and fails.
func TestTheLogOfRetriesReadsAsInNServiceBussExample(t *testing.T) {
	const (
		immediate = "INFO ImmediateRetry: Immediate Retry is going to retry message 'messageId' because of an exception:"
		delayed   = "WARN DelayedRetry: Delayed Retry will reschedule message 'messageId' after a delay of %s because of an exception:"
		moved     = "ERROR MoveToError: Moving message 'messageId' to the error queue 'error' because processing failed due to an exception:"
	)
	var want []string
	for attempt := 1; attempt <= 12; attempt++ {
		want = append(want, fmt.Sprintf("Handler - Attempt %d", attempt))
		switch attempt {
		case 4:
			want = append(want, fmt.Sprintf(delayed, "00:00:10"))
		case 8:
			want = append(want, fmt.Sprintf(delayed, "00:00:20"))
		case 12:
			want = append(want, moved)
		default:
			want = append(want, immediate)
		}
	}
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log harness.Tally
		attempts := 0
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			attempts++
			log.Add(fmt.Sprintf("Handler - Attempt %d", attempts))
			return errNo
		}))
		cfg.Recoverability = recoverability.Config{Immediate: 3, Delayed: 2}
		cfg.Logger = slog.New(lines{&log})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("messageId"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if diff := cmp.Diff(want, log.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestTheLogTellsOfADiscardAndADeadLetter(t *testing.T) {
	for want, action := range map[string]recoverability.Action{
		"INFO Discard: Discarding message 'm-1' because of an exception:":                                                         recoverability.Discard{Reason: "x"},
		"ERROR DeadLetter: Moving message 'm-1' to the broker's dead-letter queue because processing failed due to an exception:": recoverability.DeadLetter{Reason: "x"},
	} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var log harness.Tally
			cfg := harness.Sales(broker, failing(&harness.Tally{}))
			cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action { return action }
			cfg.Logger = slog.New(lines{&log})
			harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
			time.Sleep(time.Second)
			synctest.Wait()
			if diff := cmp.Diff([]string{want}, log.List()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The lines say what is about to be done. One that says otherwise follows when it was not.
func TestTheLogCorrectsItselfWhenAnActionFails(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.DeadLetterer
		broker.Fail = refusing(errNo, "error")
		var log harness.Tally
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		cfg.Logger = slog.New(lines{&log})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		want := []string{
			"ERROR MoveToError: Moving message 'm-1' to the error queue 'error' because processing failed due to an exception:",
			"ERROR: an error queue accepts no messages: failed messages are held until it does",
		}
		if diff := cmp.Diff(want, log.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestALogLineNamesTypeAttemptAndError(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log harness.Log
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Second)
		synctest.Wait()
		for _, want := range []string{" type=Shop.PlaceOrder ", " attempt=1 ", " delayed=0 ", ": the bank says no\""} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%q is missing in %s", want, log.String())
			}
		}
	})
}

// panickingLog is a log handler with a fault.
type panickingLog struct{}

func (panickingLog) Enabled(context.Context, slog.Level) bool  { return true }
func (l panickingLog) WithAttrs([]slog.Attr) slog.Handler      { return l }
func (l panickingLog) WithGroup(string) slog.Handler           { return l }
func (panickingLog) Handle(context.Context, slog.Record) error { panic("the log is full") }

// A log handler that panics costs lines of the log, and no message: messages are handled, retried
// and moved as ever.
func TestAPanickingLogStopsNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			handled.Add(o.ID)
			if o.ID == "bad" {
				return errNo
			}
			return nil
		}))
		cfg.Logger = slog.New(panickingLog{})
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "bad"})
		r.MustSend(harness.PlaceOrder{ID: "good"})
		pass(time.Minute)
		if got := len(handled.List()); got != 3 {
			t.Errorf("%d attempts, want 2 of the bad message and one of the good", got)
		}
		if n := len(broker.Messages("error")); n != 1 {
			t.Errorf("%d messages in the error queue, want 1", n)
		}
	})
}

// fullLog is a log handler behind a full pipe: a call does not return before free is closed.
type fullLog struct{ free chan struct{} }

func (fullLog) Enabled(context.Context, slog.Level) bool { return true }
func (l fullLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l fullLog) WithGroup(string) slog.Handler          { return l }

func (l fullLog) Handle(context.Context, slog.Record) error {
	<-l.free
	return nil
}

// A log that takes nothing costs its lines, and no message. Health says so, and a stop ends.
func TestAFullLogStopsNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			handled.Add(o.ID)
			if o.ID == "bad" {
				return errNo
			}
			return nil
		}))
		log := fullLog{make(chan struct{})}
		cfg.Logger = slog.New(log)
		cfg.StopTimeout = 3 * time.Second
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
		r := harness.Start(t, cfg)
		for range 40 {
			r.MustSend(harness.PlaceOrder{ID: "bad"})
		}
		r.MustSend(harness.PlaceOrder{ID: "good"})
		pass(time.Minute)
		if got := len(handled.List()); got != 81 {
			t.Errorf("%d attempts, want 2 of each bad message and one of the good", got)
		}
		if h := r.Health(); !h.Ready || len(h.Warnings) != 1 || !strings.Contains(h.Warnings[0], "the log takes no lines") {
			t.Errorf("ready: %v, %q, warnings %q", h.Ready, h.Reasons, h.Warnings)
		}
		began := time.Now()
		r.End()
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("the stop took %v", took)
		}
		close(log.free)
		synctest.Wait()
		if w := r.Health().Warnings; len(w) > 0 {
			t.Errorf("warnings %q", w)
		}
	})
}
