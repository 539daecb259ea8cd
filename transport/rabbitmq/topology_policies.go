package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// policiesUnread returns the finding that policies cannot be read, with the commands that lift the
// delivery limits of the queues among the parts.
func (c *schema) policiesUnread(parts []part) transport.Finding {
	detail := "policies that drop or refuse messages (max-length, message-ttl, expires) were not read: " +
		"set Transport.Management, or management=http://host:15672 in the URL, or see rabbitmqctl list_policies"
	var commands []string
	for _, p := range parts {
		if p.received && c.needsLifting() {
			commands = append(commands, c.liftCommand(p.name))
		}
	}
	if len(commands) > 0 {
		detail += ". Nor was it read whether policies lift the delivery limit, without which this broker drops a message after " +
			"20 returns: where they are missing, create them by " + strings.Join(commands, "; ")
	}
	return transport.Finding{Kind: "policies", State: transport.Unread, Detail: detail}
}

// policies returns the queues among the parts that policies, or the delivery limit, limit.
func (c *schema) policies(ctx context.Context, parts []part) (findings []transport.Finding, err error) {
	within, cancel := context.WithTimeoutCause(ctx, reportTimeout, errReport)
	defer cancel()
	for _, p := range parts {
		if p.exchange != "" {
			continue
		}
		q, err := c.management.current(within, p.name, c.version, "")
		switch {
		case errors.Is(err, transport.ErrNoQueue): // found already
		case err != nil && within.Err() != nil && ctx.Err() == nil:
			detail := fmt.Sprintf("the policies of queue %q, and of those after it, were not read: %v", p.name, errReport)
			return append(findings, transport.Finding{Kind: "policies", State: transport.Unread, Detail: detail}), nil
		case err != nil:
			return nil, err
		default:
			findings = append(findings, c.limits(p, q)...)
		}
	}
	return findings, nil
}

// limits returns the findings about the limits of a queue.
func (c *schema) limits(p part, q managedQueue) (findings []transport.Finding) {
	if f, ok := q.harm(p.name); ok {
		findings = append(findings, f)
	}
	limit, ok := q.limit(c.version)
	isOurs := !c.isBare() && limit.byArgument && limit.deadLetter
	isLow := limit.isSet && limit.returns <= maxLooks // each look at a shared queue may count
	if !ok || p.received && isOurs || !p.received && !isLow {
		return findings
	}
	detail := limit.advice(q)
	if limit.isLiftable(q) {
		detail += ": " + c.liftCommand(p.name)
	}
	return append(findings, transport.Finding{Kind: "queue", Name: p.name, State: transport.Limited, Detail: detail})
}
