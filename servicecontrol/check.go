package servicecontrol

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"
)

const checkType = "ServiceControl.Plugin.CustomChecks.Messages.ReportCustomCheckResult"

// checkResult is the result of one run of a check.
type checkResult struct {
	HostID        string `json:"HostId"`
	CustomCheckID string `json:"CustomCheckId"`
	Category      string
	HasFailed     bool
	FailureReason *string
	ReportedAt    instant
	EndpointName  string
	Host          string
}

const (
	// resendCheck is the pause before a result that could not be sent is sent again.
	resendCheck = time.Minute
	// maxReason is the longest reason of a failure in bytes.
	maxReason = 4 << 10
)

// check runs c and reports its results until ctx ends, or once if c has no interval.
func (s *sender) check(ctx context.Context, c Check) {
	r := &checkRun{Check: c, panics: s.failures("custom check", slog.String("check", c.ID))}
	failures := s.failures("custom check", slog.String("check", c.ID), slog.String("queue", s.CheckQueue))
	for {
		reason := r.run(ctx)
		due := time.Now().Add(c.Interval)
		if ctx.Err() != nil {
			return // the stop may be the reason
		}
		s.report(ctx, c, reason, due, failures)
		if c.Interval == 0 || sleep(ctx, time.Until(due)) != nil {
			return
		}
	}
}

// report sends a result, repeatedly until the next run is due.
func (s *sender) report(ctx context.Context, c Check, reason string, due time.Time, failures *failures) {
	m := checkResult{
		HostID: s.host.guid(), CustomCheckID: c.ID, Category: c.Category, ReportedAt: instant(time.Now()),
		EndpointName: s.endpoint, Host: s.host.name,
	}
	if reason != "" {
		m.HasFailed, m.FailureReason = true, &reason
	}
	for {
		err := s.sendJSON(ctx, s.CheckQueue, lifetime(c.Interval), s.command(), checkType, m)
		if err == nil {
			failures.ended(ctx)
			return
		}
		failures.add(ctx, err)
		last := c.Interval > 0 && time.Until(due) <= resendCheck
		if last || sleep(ctx, resendCheck) != nil {
			return
		}
	}
}

// checkRun runs a check, one run at a time.
type checkRun struct {
	Check
	panics *failures

	pending chan string // the result of a run that has not returned within its time; nil: none
	since   time.Time   // when that run began
}

// run returns the reason why the check fails; "" if it succeeds.
func (r *checkRun) run(ctx context.Context) string {
	if r.pending != nil {
		select {
		case <-r.pending:
		default:
			return fmt.Sprintf("the run that began at %s has not returned, although its context has ended",
				r.since.UTC().Format(time.RFC3339))
		}
	}
	r.since, r.pending = time.Now(), make(chan string, 1)
	limited, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	go func(result chan<- string) { r.call(limited, result) }(r.pending)
	select {
	case reason := <-r.pending:
		r.pending = nil
		return reason
	case <-limited.Done():
		return fmt.Sprintf("the check did not return within %v", r.Timeout)
	}
}

var errExited = errors.New("the check ended its goroutine instead of returning")

// call calls the function of the user, which may panic, and sends the reason of a failure, or "".
func (r *checkRun) call(ctx context.Context, result chan<- string) {
	reason := errExited.Error()
	defer func() {
		if v := recover(); v != nil {
			reason = fmt.Sprintf("the check panicked: %v", v)
			r.panics.add(ctx, errors.New(reason), slog.String("stack", string(debug.Stack())))
		}
		result <- cut(reason, maxReason)
	}()
	reason = reasonOf(r.Run(ctx))
}

// reasonOf returns the text of an error, which is never empty.
func reasonOf(err error) string {
	switch {
	case err == nil:
		return ""
	case strings.TrimSpace(err.Error()) == "":
		return fmt.Sprintf("an error without a text, of type %T", err)
	}
	return err.Error()
}

// cut returns the beginning of a text as valid UTF-8 of at most size bytes.
func cut(text string, size int) string {
	if len(text) > size {
		text = text[:size]
	}
	return strings.ToValidUTF8(text, "")
}
