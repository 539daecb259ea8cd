package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// From RabbitMQ 4.0 a quorum queue without a limit of its own drops a message after 20 returns.
// NServiceBus does not start on a queue with such a limit, and lifts it by a policy. Only one
// policy applies to a queue: the one with the highest priority,
// https://www.rabbitmq.com/docs/policies.

const (
	// liftedLimit is the delivery limit that NServiceBus sets, and accepts, in place of none.
	liftedLimit = 100_000
	// reportTimeout bounds waiting for the report of the broker on the policies of queues, which is
	// 5 to 10 s late, and later on a machine under load.
	reportTimeout = time.Minute
)

// policy is a policy in the management API.
type policy struct {
	Name       string         `json:"name,omitempty"` // absent where a policy is created
	Pattern    string         `json:"pattern"`
	Definition map[string]any `json:"definition"`
	Priority   int            `json:"priority"`
	ApplyTo    string         `json:"apply-to"`
}

// liftName returns the name of the policy that lifts the delivery limit of a queue. Name and
// contents of that policy are those of NServiceBus.
func liftName(queue string) string { return "nsb." + queue + ".delivery-limit" }

func liftPolicy(queue string) policy {
	return policy{
		Pattern: "^" + regexp.QuoteMeta(queue) + "$", Definition: map[string]any{"delivery-limit": liftedLimit}, ApplyTo: "quorum_queues",
	}
}

// liftCommand returns the command that creates the policy, for a POSIX shell.
func (c *schema) liftCommand(queue string) string {
	p := liftPolicy(queue)
	return fmt.Sprintf(`rabbitmqctl set_policy --vhost=%s --priority %d --apply-to %s %s %s '{"delivery-limit":%d}'`,
		shellQuoted(c.vhost), p.Priority, p.ApplyTo, shellQuoted(liftName(queue)), shellQuoted(p.Pattern), liftedLimit)
}

// shellQuoted returns a word of a POSIX shell.
func shellQuoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// isBare reports whether queues are declared with their type alone, as NServiceBus does.
func (c *schema) isBare() bool { return c.deadLetters.limit == 0 }

// needsLifting reports whether the limit of queues that this schema declares has to be lifted.
func (c *schema) needsLifting() bool { return c.isBare() && c.version.atLeast(release40) }

// liftLimits lifts the delivery limit of the quorum queues of a plan. If that is not possible it
// logs the reason and the command for an operator. It fails only when ctx ends.
func (c *schema) liftLimits(ctx context.Context, queues []transport.Queue) error {
	if !c.needsLifting() {
		return nil
	}
	within, cancel := context.WithTimeoutCause(ctx, reportTimeout, errReport)
	defer cancel()
	var (
		lifted []string
		silent error // the API does not answer
	)
	for _, q := range queues {
		if !c.isQuorum(q) {
			continue
		}
		c.checked.Store(q.Name, true)
		isNew, err := false, silent
		if silent == nil {
			isNew, err = c.lift(within, q.Name)
		}
		if errors.As(err, new(*url.Error)) {
			silent = err
		}
		if err != nil {
			c.warnOfLimit(ctx, q.Name, err)
		} else if isNew {
			lifted = append(lifted, q.Name)
		}
	}
	for _, name := range lifted {
		if err := c.awaitLift(within, name); err != nil {
			c.warnOfLimit(ctx, name, err)
		}
	}
	return context.Cause(ctx)
}

// lift creates the policy for a queue that has a limit, unless another policy applies to it, and
// reports whether it did.
func (c *schema) lift(ctx context.Context, name string) (isNew bool, err error) {
	if c.management == nil {
		return false, errLimitUnread
	}
	// The broker may have stored the policy without applying it, if the process that created it was
	// killed.
	q, err := c.management.current(ctx, name, c.version, liftName(name))
	if err != nil {
		return false, err
	}
	limit, ok := q.limit(c.version)
	if !ok {
		return false, nil
	}
	if !limit.isLiftable(q) {
		return false, limit.err(q)
	}
	return true, c.management.setPolicy(ctx, liftName(name), liftPolicy(name))
}

// awaitLift waits until the broker reports that the policy applies. It fails where an operator
// policy sets a limit, or another policy was created meanwhile.
func (c *schema) awaitLift(ctx context.Context, name string) error {
	return c.management.poll(ctx, name, func(q managedQueue) (bool, error) {
		limit, ok := q.limit(c.version)
		if ok && q.Policy != "" {
			return false, limit.err(q)
		}
		return !ok, nil
	})
}

// errReport ends waiting for the broker's report on a queue.
var errReport = fmt.Errorf("the broker has not reported it within %v", reportTimeout)

var errLimitUnread = errors.New("whether a policy lifts the limit cannot be read without Transport.Management")

// warnOfLimit logs that the broker may drop messages of a queue, with the command that prevents
// that, if there is one.
func (c *schema) warnOfLimit(ctx context.Context, queue string, why error) {
	if ctx.Err() != nil {
		return
	}
	attrs := []any{"queue", queue, "reason", why}
	if !errors.As(why, new(otherLimitError)) {
		attrs = append(attrs, "command", c.liftCommand(queue))
	}
	c.log.WarnContext(ctx, "the broker may drop messages that return to their queue too often, by default after 20 returns", attrs...)
}

// checkLimit logs whether the broker may drop messages of a queue, once for each queue. It asks in
// the background.
func (c *conn) checkLimit(queue string) {
	if !c.needsLifting() || c.queueType != Quorum || queue == c.deadLetters.queue {
		return
	}
	if _, checked := c.checked.LoadOrStore(queue, true); checked {
		return
	}
	if c.management == nil {
		c.warnOfLimit(c.ctx, queue, errLimitUnread)
		return
	}
	c.tasks.Go(func() {
		ctx, cancel := context.WithTimeoutCause(c.ctx, reportTimeout, errReport)
		defer cancel()
		if err := c.readLimit(ctx, queue); err != nil {
			c.warnOfLimit(c.ctx, queue, err)
		}
	})
}

// readLimit fails where the delivery limit of a queue is not lifted, or cannot be read.
func (c *schema) readLimit(ctx context.Context, queue string) error {
	q, err := c.management.current(ctx, queue, c.version, "")
	if err != nil {
		return err
	}
	if limit, ok := q.limit(c.version); ok {
		return limit.err(q)
	}
	return nil
}
