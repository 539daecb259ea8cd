package rabbitmq

import (
	"cmp"
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

// lifter is the part of a conn that lifts the delivery limits of queues by policies.
type lifter struct{ *core }

// liftLimits lifts the delivery limit of the quorum queues of a plan. If that is not possible it
// logs the reason and the command for an operator. It fails only when ctx ends.
func (l *lifter) liftLimits(ctx context.Context, queues []transport.Queue) error {
	if !l.needsLifting() {
		return nil
	}
	within, cancel := context.WithTimeoutCause(ctx, reportTimeout, errReport)
	defer cancel()
	var (
		lifted []string
		silent error // the API does not answer
	)
	for _, q := range queues {
		if !l.isQuorum(q) {
			continue
		}
		l.checked.Store(q.Name, true)
		isNew, err := false, silent
		if silent == nil {
			isNew, err = l.lift(within, q.Name)
		}
		if errors.As(err, new(*url.Error)) {
			silent = err
		}
		if err != nil {
			l.warnOfLimit(ctx, q.Name, err)
		} else if isNew {
			lifted = append(lifted, q.Name)
		}
	}
	for _, name := range lifted {
		if err := l.awaitLift(within, name); err != nil {
			l.warnOfLimit(ctx, name, err)
		}
	}
	return context.Cause(ctx)
}

// lift creates the policy for a queue that has a limit, unless another policy applies to it, and
// reports whether it did.
func (l *lifter) lift(ctx context.Context, name string) (isNew bool, err error) {
	if l.management == nil {
		return false, errLimitUnread
	}
	// The broker may have stored the policy without applying it, if the process that created it was
	// killed.
	q, err := l.management.current(ctx, name, l.version, liftName(name))
	if err != nil {
		return false, err
	}
	limit, ok := q.limit(l.version)
	if !ok {
		return false, nil
	}
	if !limit.isLiftable(q) {
		return false, limit.err(q)
	}
	return true, l.management.setPolicy(ctx, liftName(name), liftPolicy(name))
}

// awaitLift waits until the broker reports that the policy applies. It fails where an operator
// policy sets a limit, or another policy was created meanwhile.
func (l *lifter) awaitLift(ctx context.Context, name string) error {
	return l.management.poll(ctx, name, func(q managedQueue) (bool, error) {
		limit, ok := q.limit(l.version)
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
func (l *lifter) warnOfLimit(ctx context.Context, queue string, why error) {
	if ctx.Err() != nil {
		return
	}
	attrs := []any{"queue", queue, "reason", why}
	if !errors.As(why, new(otherLimitError)) {
		attrs = append(attrs, "command", l.liftCommand(queue))
	}
	l.log.WarnContext(ctx, "the broker may drop messages that return to their queue too often, by default after 20 returns", attrs...)
}

// checkLimit logs whether the broker may drop messages of a queue, once for each queue. It asks in
// the background.
func (l *lifter) checkLimit(queue string) {
	if !l.needsLifting() || l.queueType != Quorum || queue == l.deadLetters.queue {
		return
	}
	if _, checked := l.checked.LoadOrStore(queue, true); checked {
		return
	}
	if l.management == nil {
		l.warnOfLimit(l.ctx, queue, errLimitUnread)
		return
	}
	l.tasks.Go(func() {
		ctx, cancel := context.WithTimeoutCause(l.ctx, reportTimeout, errReport)
		defer cancel()
		if err := l.readLimit(ctx, queue); err != nil {
			l.warnOfLimit(l.ctx, queue, err)
		}
	})
}

// readLimit fails where the delivery limit of a queue is not lifted, or cannot be read.
func (l *lifter) readLimit(ctx context.Context, queue string) error {
	q, err := l.management.current(ctx, queue, l.version, "")
	if err != nil {
		return err
	}
	if limit, ok := q.limit(l.version); ok {
		return limit.err(q)
	}
	return nil
}

// policiesUnread returns the finding that policies cannot be read, with the commands that lift the
// delivery limits of the queues among the parts.
func (l *lifter) policiesUnread(parts []part) transport.Finding {
	detail := "policies that drop or refuse messages (max-length, message-ttl, expires) were not read: " +
		"set Transport.Management, or management=http://host:15672 in the URL, or see rabbitmqctl list_policies"
	var commands []string
	for _, p := range parts {
		if p.received && l.needsLifting() {
			commands = append(commands, l.liftCommand(p.name))
		}
	}
	if len(commands) > 0 {
		detail += ". Nor was it read whether policies lift the delivery limit, without which this broker drops a message after " +
			"20 returns: where they are missing, create them by " + strings.Join(commands, "; ")
	}
	return transport.Finding{Kind: "policies", State: transport.Unread, Detail: detail}
}

// policies returns the queues among the parts that policies, or the delivery limit, limit.
func (l *lifter) policies(
	ctx context.Context, parts []part,
) (findings []transport.Finding, err error) {
	within, cancel := context.WithTimeoutCause(ctx, reportTimeout, errReport)
	defer cancel()
	for _, p := range parts {
		if p.exchange != "" {
			continue
		}
		q, err := l.management.current(within, p.name, l.version, "")
		switch {
		case errors.Is(err, transport.ErrNoQueue): // found already
		case err != nil && within.Err() != nil && ctx.Err() == nil:
			detail := fmt.Sprintf("the policies of queue %q, and of those after it, were not read: %v", p.name, errReport)
			return append(findings, transport.Finding{Kind: "policies", State: transport.Unread, Detail: detail}), nil
		case err != nil:
			return nil, err
		default:
			findings = append(findings, l.limits(p, q)...)
		}
	}
	return findings, nil
}

// limits returns the findings about the limits of a queue.
func (l *lifter) limits(p part, q managedQueue) (findings []transport.Finding) {
	if f, ok := q.harm(p.name); ok {
		findings = append(findings, f)
	}
	limit, ok := q.limit(l.version)
	isOurs := !l.isBare() && limit.byArgument && limit.deadLetter
	isLow := limit.isSet && limit.returns <= maxLooks // each look at a shared queue may count
	if !ok || p.received && isOurs || !p.received && !isLow {
		return findings
	}
	detail := limit.advice(q)
	if limit.isLiftable(q) {
		detail += ": " + l.liftCommand(p.name)
	}
	return append(findings, transport.Finding{Kind: "queue", Name: p.name, State: transport.Limited, Detail: detail})
}

// returnLimit is the delivery limit of a queue. A message that returns more often is dropped or
// dead-lettered.
type returnLimit struct {
	returns    int64
	byArgument bool // of the queue, which cannot be changed
	isSet      bool // by an argument or a policy, and not the broker's default
	deadLetter bool
}

// limit returns the delivery limit of a queue; not ok where it has none, or one that is as good as
// none.
func (q managedQueue) limit(v version) (l returnLimit, ok bool) {
	args, policies := settings(q.Arguments), settings(q.Effective)
	byArgument, hasArgument := number(args["x-delivery-limit"])
	byPolicy, hasPolicy := number(policies["delivery-limit"])
	l = returnLimit{byArgument: hasArgument, isSet: hasArgument || hasPolicy}
	_, exchange1 := args["x-dead-letter-exchange"]
	_, exchange2 := policies["dead-letter-exchange"]
	l.deadLetter = exchange1 || exchange2
	switch reported, ok := number(q.DeliveryLimit); {
	case q.Type != string(Quorum), q.DeliveryLimit == "unlimited":
		return l, false
	case ok: // from 4.0
		l.returns = reported
	case v.atLeast(release40) || !l.isSet:
		return l, false
	case hasArgument && hasPolicy:
		l.returns = min(byArgument, byPolicy)
	default:
		l.returns = cmp.Or(byArgument, byPolicy)
	}
	l.returns = max(l.returns, 0) // before 4.0 a negative limit is 0
	return l, l.returns < liftedLimit
}

// isLiftable reports whether the policy of [liftPolicy] lifts the limit of q.
func (l returnLimit) isLiftable(q managedQueue) bool { return !l.isSet && q.Policy == "" }

// err returns the limit as an error.
func (l returnLimit) err(q managedQueue) error {
	if l.isLiftable(q) {
		return errors.New(l.advice(q))
	}
	return otherLimitError(l.advice(q))
}

// advice returns the effect of the limit and how it is lifted.
func (l returnLimit) advice(q managedQueue) string {
	verb := "drops"
	if l.deadLetter {
		verb = "dead-letters"
	}
	effect := fmt.Sprintf("the broker %s a message that returns more than %d times", verb, l.returns)
	switch {
	case l.byArgument:
		return effect + ", by the argument x-delivery-limit, with which no endpoint of NServiceBus starts on the queue: " +
			"delete it while it is empty, and create it again with Install"
	case l.isSet:
		return fmt.Sprintf("%s, by policy %s, with which no endpoint of NServiceBus starts on the queue: leave out delivery-limit "+
			"there, or set it to %d", effect, q.policies(), liftedLimit)
	case q.Policy != "":
		return fmt.Sprintf("%s. Only one policy applies to a queue, here %q: add \"delivery-limit\":%d to it", effect, q.Policy, liftedLimit)
	}
	return effect + ", and no policy lifts that limit"
}

// otherLimitError says that a limit cannot be lifted by a policy of its own.
type otherLimitError string

func (e otherLimitError) Error() string { return string(e) }

// removePolicy deletes the policy that lifted the delivery limit of a queue, if Install may have
// created it. A policy that is left applies to no queue, so that a failure is only logged.
func (l *lifter) removePolicy(ctx context.Context, queue string) {
	if l.management == nil || !l.needsLifting() {
		return
	}
	if err := l.management.deletePolicy(ctx, liftName(queue)); err != nil {
		l.log.WarnContext(ctx, "the policy of a deleted queue was not deleted", "queue", queue, "error", err)
	}
}
