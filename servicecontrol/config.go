package servicecontrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
)

// Config selects the reports of an endpoint. Each part is off until its queue is named; the zero
// value sends nothing.
type Config struct {
	// HeartbeatQueue is the queue of the ServiceControl error instance, whose default name is
	// "Particular.ServiceControl". Default: no heartbeats.
	HeartbeatQueue string
	// HeartbeatInterval is the time between heartbeats, at least 1 s. Default: 10 s. ServiceControl
	// reports an instance as stopped when its last heartbeat is older than 40 s, unless that is
	// configured there.
	HeartbeatInterval time.Duration
	// CheckQueue is the queue for the results of Checks, which is that of the ServiceControl error
	// instance. Default: the checks do not run.
	CheckQueue string
	// Checks are functions that report whether something that the endpoint needs works.
	Checks []Check
	// MetricsQueue is the queue of the Monitoring instance, whose default name is
	// "Particular.Monitoring". Default: no metrics. A send-only endpoint has none.
	MetricsQueue string
	// MetricsInterval is the time between reports of metrics, from 1 s to 30 s. Default: 10 s.
	// ServicePulse shows an endpoint as disconnected after 40 s without a report.
	MetricsInterval time.Duration
	// SagaAuditQueue is the queue of the ServiceControl audit instance, which is that of
	// [endpoint.Config].AuditQueue. It gets the state of each instance of a saga after each
	// message, and audit copies name the sagas that handled a message, so that ServicePulse shows
	// the history of an instance. The reports are sent with the messages of the handlers. Default:
	// no reports.
	SagaAuditQueue string
}

// Check is a custom check: a function of the program whose result ServicePulse shows.
type Check struct {
	// ID names the check in ServicePulse. It is unique among the checks of the endpoint and does
	// not change. Required.
	ID string
	// Category groups checks in ServicePulse, such as "Storage". Required.
	Category string
	// Interval is the time from the end of a run to the next one, at least 1 s. 0: the check runs
	// once, after the start.
	Interval time.Duration
	// Timeout is the time limit of a run. Default: 30 s. Then its context ends, and the check is
	// reported as failed. While a run ignores its context, the check is reported as failed and is
	// not started again.
	Timeout time.Duration
	// Run returns nil if all is well, otherwise an error whose text ServicePulse shows. A panic is
	// a failure too. One endpoint calls Run in one goroutine at a time. Required.
	Run func(ctx context.Context) error
}

const (
	defaultInterval = 10 * time.Second
	minInterval     = time.Second
	// maxMetricsInterval is below the 40 s after which Monitoring takes an endpoint for
	// disconnected.
	maxMetricsInterval  = 30 * time.Second
	defaultCheckTimeout = 30 * time.Second
)

func (c Config) withDefaults() Config {
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, defaultInterval)
	c.MetricsInterval = cmp.Or(c.MetricsInterval, defaultInterval)
	c.Checks = slices.Clone(c.Checks)
	for i := range c.Checks {
		c.Checks[i].Timeout = cmp.Or(c.Checks[i].Timeout, defaultCheckTimeout)
	}
	return c
}

// validate returns all mistakes in c, which has its defaults, for an endpoint.
func (c Config) validate(of *endpoint.Config) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if of.Name == "" || of.Transport == nil {
		bad("the endpoint's Config has no Name or no Transport: call Attach when it is complete")
	}
	for _, q := range []struct{ field, name string }{
		{"HeartbeatQueue", c.HeartbeatQueue},
		{"CheckQueue", c.CheckQueue},
		{"MetricsQueue", c.MetricsQueue},
		{"SagaAuditQueue", c.SagaAuditQueue},
	} {
		if q.name != "" && q.name == of.Name {
			bad("%s is the endpoint's own queue, %q: name the queue of ServiceControl", q.field, q.name)
		}
	}
	if c.HeartbeatInterval < minInterval {
		bad("HeartbeatInterval is %v: it must be at least %v", c.HeartbeatInterval, minInterval)
	}
	if c.MetricsInterval < minInterval || c.MetricsInterval > maxMetricsInterval {
		bad("MetricsInterval is %v: it must be from %v to %v", c.MetricsInterval, minInterval, maxMetricsInterval)
	}
	if c.MetricsQueue != "" && of.SendOnly {
		bad("MetricsQueue is set, but the endpoint is SendOnly: it processes no messages")
	}
	ids := map[string]bool{}
	for i, check := range c.Checks {
		check.validate(i, bad)
		if ids[check.ID] {
			bad("Checks[%d] has the ID %q of another check", i, check.ID)
		}
		ids[check.ID] = true
	}
	return errors.Join(errs...)
}

// validate reports the mistakes of the check with an index.
func (c Check) validate(i int, bad func(format string, args ...any)) {
	if c.ID == "" || c.Category == "" || c.Run == nil {
		bad("Checks[%d] needs an ID, a Category and a Run function", i)
	}
	if c.Interval != 0 && c.Interval < minInterval {
		bad("Checks[%d] has an Interval of %v: it must be at least %v, or 0 for one run", i, c.Interval, minInterval)
	}
	if c.Timeout < 0 {
		bad("Checks[%d] has a negative Timeout: %v", i, c.Timeout)
	}
}

// checks reports whether there are checks to run.
func (c Config) checks() bool { return c.CheckQueue != "" && len(c.Checks) > 0 }
