package endpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

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
		bad("Name %q has a character that no queue may have (@, a control character, or invalid UTF-8)", c.Name)
	}
	if c.Transport == nil {
		bad("Transport is nil")
	}
	c.validateQueues(func(queue string) string { return queue }, bad)
	for _, queue := range append(c.Recoverability.ErrorQueues(), c.AuditQueue) {
		if !isText(queue) {
			bad("the error or audit queue %q %s", queue, notText)
		}
	}
	if c.AuditExpireAfter < 0 {
		bad("AuditExpireAfter is negative: %v", c.AuditExpireAfter)
	}
	switch {
	case c.AuditQueue == "" && c.AuditExpireAfter > 0:
		bad("AuditExpireAfter is set, but AuditQueue is not: there are no copies to expire")
	case c.AuditQueue != "" && c.SendOnly:
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
		bad("Instance %q has a character that no queue may have (@, a control character, or invalid UTF-8)", c.Instance)
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
	c.validateOutbox(bad)
	c.validateRecords(bad)
	c.validateRaised(bad)
	c.validateRetries(bad)
	serializers(c.Serializers).validate(bad)
	return errors.Join(append(errs, c.Recoverability.Validate())...)
}

// validateQueues reports queues that are both received from and an error or audit queue. of returns
// the one name of a queue.
func (c Config) validateQueues(of func(queue string) string, bad func(format string, args ...any)) {
	var errorQueues []string
	for _, queue := range c.Recoverability.ErrorQueues() {
		errorQueues = append(errorQueues, of(queue))
	}
	own, audit := of(c.Name), of(c.AuditQueue)
	if own != "" && slices.Contains(errorQueues, own) {
		bad("Name and an error queue of Recoverability are both %q: what fails would come back at once", own)
	}
	instance := of(c.instanceQueue())
	if instance != "" && slices.Contains(errorQueues, instance) {
		bad("the queue of the instance and an error queue of Recoverability are both %q: what fails would come back at once", instance)
	}
	quarantine := of(c.Name + quarantineSuffix)
	if slices.Contains(errorQueues, quarantine) || audit == quarantine {
		bad("%q is the endpoint's quarantine and cannot be an error queue or its audit queue too", quarantine)
	}
	switch {
	case audit == "":
	case audit == own:
		bad("Name and AuditQueue are both %q: every message would come back at once", own)
	case audit == instance:
		bad("the queue of the instance and AuditQueue are both %q: every message would come back at once", audit)
	case slices.Contains(errorQueues, audit):
		bad("AuditQueue and an error queue of Recoverability are both %q", audit)
	}
}

func (c Config) validateOutbox(bad func(format string, args ...any)) {
	switch atomic := c.Transactions == SendsAtomicWithReceive; {
	case c.Outbox != nil && atomic:
		bad("Outbox is set, but Transactions is %v, which commits in the transport's own database: leave Outbox out, or use %v",
			c.Transactions, ReceiveOnly)
	case c.Outbox != nil && c.Transactions == None:
		bad("Outbox is set, but Transactions is None, which completes messages before they are handled: use %v", ReceiveOnly)
	case c.Remember != 0 && c.Outbox == nil && !atomic:
		bad("Remember is set, but there is no database for the ids: set Outbox, or Transactions to %v", SendsAtomicWithReceive)
	case c.OutboxRefusedFor < None:
		bad("OutboxRefusedFor is negative: %v; use None to move messages at their third refusal", c.OutboxRefusedFor)
	case c.OutboxRefusedFor != 0 && c.Outbox == nil:
		bad("OutboxRefusedFor is set, but there is no Outbox")
	case c.Remember < None:
		bad("Remember is negative: %v; use None to keep no ids", c.Remember)
	case c.Remember > 0 && c.Remember < minRemember:
		bad("Remember is %v: it must be at least %v, as delayed retries may begin until then", c.Remember, minRemember)
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

// notText is the end of an error for a text that is not [isText].
const notText = "has a control character or invalid UTF-8, which not every broker keeps"

// queueName reports whether a queue of the endpoint may have a name.
func queueName(name string) bool { return isText(name) && !strings.Contains(name, "@") }

// isText reports whether each broker keeps a text in headers, such as the name or the address of a
// queue: it is valid UTF-8 without control characters.
func isText(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}
