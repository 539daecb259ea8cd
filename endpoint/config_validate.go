package endpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/pump"
)

// validate returns all mistakes in c as the user wrote it.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case c.Name == "":
		bad("Name is empty")
	case !queueName(c.Name):
		bad("Name %q has a character that no queue may have (@ or a control character)", c.Name)
	}
	if c.Transport == nil {
		bad("Transport is nil")
	}
	c.validateQueues(bad)
	if c.AuditExpireAfter < 0 {
		bad("AuditExpireAfter is negative: %v", c.AuditExpireAfter)
	}
	switch {
	case c.AuditQueue == "" && c.AuditExpireAfter > 0:
		bad("AuditExpireAfter is set, but AuditQueue is not: there are no copies to expire")
	case c.AuditQueue == "":
	case c.AuditQueue == c.Name:
		bad("Name and AuditQueue are both %q: every message would come back at once", c.Name)
	case c.AuditQueue == c.instanceQueue():
		bad("the queue of the instance and AuditQueue are both %q: every message would come back at once", c.AuditQueue)
	case slices.Contains(c.Recoverability.ErrorQueues(), c.AuditQueue):
		bad("AuditQueue and an error queue of Recoverability are both %q", c.AuditQueue)
	case c.SendOnly:
		bad("AuditQueue is set, but the endpoint is SendOnly: it processes no messages")
	}
	if c.Concurrency < 0 || c.Concurrency > maxConcurrency {
		bad("Concurrency is %d: it must be from 1 to %d, or 0 for the default", c.Concurrency, maxConcurrency)
	}
	if c.MaxBufferedBytes < 0 {
		bad("MaxBufferedBytes is negative: %d; 0 is the default of %d", c.MaxBufferedBytes, pump.DefaultBudget)
	}
	switch {
	case c.InstanceQueue && c.SendOnly:
		bad("InstanceQueue is set, but the endpoint is SendOnly: it has no queues")
	case c.InstanceQueue && c.Instance == "":
		bad("InstanceQueue is set: it needs an Instance that is the same after a restart")
	case c.InstanceQueue && !queueName(c.Instance):
		bad("Instance %q has a character that no queue may have (@ or a control character)", c.Instance)
	}
	c.Host.validate(bad)
	c.validateFunctions(bad)
	if c.SendOnly && len(c.Handlers) > 0 {
		bad("SendOnly is set, but there are handlers: they would never run")
	}
	if c.HandlerTimeout < 0 {
		bad("HandlerTimeout is negative: %v", c.HandlerTimeout)
	}
	if c.StopTimeout < None {
		bad("StopTimeout is negative: %v; use None for no limit", c.StopTimeout)
	}
	if c.Transactions < None || c.Transactions > SendsAtomicWithReceive {
		bad("Transactions is %v: there is no such mode", c.Transactions)
	}
	serializers(c.Serializers).validate(bad)
	return errors.Join(append(errs, c.Recoverability.Validate())...)
}

// validateQueues reports queues that are both received from and an error or audit queue.
func (c Config) validateQueues(bad func(format string, args ...any)) {
	errorQueues := c.Recoverability.ErrorQueues()
	if c.Name != "" && slices.Contains(errorQueues, c.Name) {
		bad("Name and an error queue of Recoverability are both %q: what fails would come back at once", c.Name)
	}
	if q := c.instanceQueue(); q != "" && slices.Contains(errorQueues, q) {
		bad("the queue of the instance and an error queue of Recoverability are both %q: what fails would come back at once", q)
	}
	quarantine := c.Name + quarantineSuffix
	if slices.Contains(errorQueues, quarantine) || c.AuditQueue == quarantine {
		bad("%q is the endpoint's quarantine and cannot be an error queue or its audit queue too", quarantine)
	}
}

func (c Config) validateFunctions(bad func(format string, args ...any)) {
	for i, f := range c.Notify {
		if f == nil {
			bad("Notify[%d] is nil", i)
		}
	}
	for i, f := range c.Background {
		if f == nil {
			bad("Background[%d] is nil", i)
		}
	}
}

func queueName(name string) bool { return !strings.ContainsAny(name, "@\r\n\x00") }
