package asb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/transport"
)

// fewDeliveries is a delivery limit that an endpoint's own counting may reach.
const fewDeliveries = defaultDeliveryCount / 4

// Verify implements [transport.Verifier]. Without the right to manage the namespace, existing
// queues are [transport.Unknown], and topics are not compared.
func (c *conn) Verify(ctx context.Context, plan transport.Plan) ([]transport.Finding, error) {
	ctx, cancel := joined(ctx, c.ctx)
	defer cancel()
	var findings []transport.Finding
	for _, q := range plan.Queues {
		f, err := c.verifyQueue(ctx, q)
		if err != nil {
			return nil, c.orClosed(wrap(managed(err), "verify queue %q", q.Name))
		}
		if f.State != "" {
			f.Kind, f.Name = "queue", q.Name
			findings = append(findings, f)
		}
	}
	for _, topic := range c.published(plan.Types) {
		path, err := c.naming.entity(topic)
		if err != nil {
			return nil, err
		}
		found, err := c.admin.GetTopic(ctx, path, nil)
		if err != nil && !unmanageable(err) {
			return nil, c.orClosed(wrap(managed(err), "verify topic %q", topic))
		}
		if err == nil && found == nil {
			findings = append(findings, transport.Finding{Kind: "topic", Name: topic, State: transport.Missing})
		}
	}
	return findings, nil
}

// verifyQueue returns a finding without a State when the queue is fit for the endpoint.
func (c *conn) verifyQueue(ctx context.Context, q transport.Queue) (transport.Finding, error) {
	path, err := c.naming.entity(q.Name)
	if err != nil {
		return transport.Finding{}, err
	}
	found, err := c.admin.GetQueue(ctx, path, nil)
	unknown := unmanageable(err)
	if unknown {
		err = c.exists(ctx, path)
	}
	switch {
	case errors.Is(plain(err), transport.ErrNoQueue), err == nil && found == nil && !unknown:
		return transport.Finding{State: transport.Missing}, nil
	case err != nil:
		return transport.Finding{}, err
	case unknown:
		return transport.Finding{State: transport.Unknown, Detail: errManage.Error()}, nil
	}
	if unfit := c.unfit(q, &found.QueueProperties); len(unfit) > 0 {
		return transport.Finding{State: transport.Differs, Detail: strings.Join(unfit, "; ")}, nil
	}
	return transport.Finding{}, nil
}

// unfit returns the settings of a queue that keep an endpoint from working with it.
func (c *conn) unfit(q transport.Queue, p *admin.QueueProperties) (settings []string) {
	if p.RequiresSession != nil && *p.RequiresSession {
		settings = append(settings, "requires message sessions, so the endpoint cannot receive from it: create it without")
	}
	if to := valueOr(p.ForwardTo, ""); to != "" {
		settings = append(settings, "forwards its messages to "+to)
	}
	if s := valueOr(p.Status, admin.EntityStatusActive); s != admin.EntityStatusActive {
		settings = append(settings, "is "+string(s))
	}
	if limit := c.lowLimit(q, p); limit != "" {
		settings = append(settings, limit)
	}
	return settings
}

// lowLimit returns the delivery limit of a queue as text if it is too low.
func (c *conn) lowLimit(q transport.Queue, p *admin.QueueProperties) string {
	most := valueOr(p.MaxDeliveryCount, math.MaxInt32)
	switch {
	case most >= fewDeliveries, c.emulated(most):
		return ""
	case q.Shared:
		return fmt.Sprintf("dead-letters messages after %d deliveries, and a tool that takes a message out of it counts as a delivery of those "+
			"in front: set its MaxDeliveryCount to %d", most, math.MaxInt32)
	}
	return fmt.Sprintf("dead-letters messages after %d deliveries, perhaps before their retries are over: set its MaxDeliveryCount to %d",
		most, defaultDeliveryCount)
}

func valueOr[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}

// VerifySubscriptions returns a finding for each subscription, and each rule of one, that Subscribe
// would create for queue and types: none when all is there. It changes nothing. It needs the right
// to manage the namespace.
func (c *conn) VerifySubscriptions(ctx context.Context, queue string, types []string) ([]transport.Finding, error) {
	ctx, cancel := joined(ctx, c.ctx)
	defer cancel()
	var findings []transport.Finding
	for _, s := range c.ns.Subscriptions(queue, types...) {
		found, err := c.verifySubscription(ctx, s)
		if err != nil {
			return nil, c.orClosed(wrap(managed(err), "verify subscription %q of topic %q", s.Name, s.Topic))
		}
		findings = append(findings, found...)
	}
	return findings, nil
}

func (c *conn) verifySubscription(ctx context.Context, s Subscription) (findings []transport.Finding, err error) {
	name := s.Topic + "/" + s.Name
	found, err := c.findSubscription(ctx, s)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return []transport.Finding{{Kind: "subscription", Name: name, State: transport.Missing}}, nil
	}
	if to := valueOr(found.ForwardTo, ""); !forwardsTo(to, s.Queue) {
		findings = append(findings, transport.Finding{
			Kind: "subscription", Name: name, State: transport.Differs,
			Detail: fmt.Sprintf("forwards to %q instead of %q", to, s.Queue),
		})
	}
	for _, rule := range s.Rules {
		found, err := c.admin.GetRule(ctx, s.Topic, s.Name, rule, nil)
		if err := unlessMissing(err); err != nil {
			return nil, err
		}
		if found == nil {
			findings = append(findings, transport.Finding{Kind: "rule", Name: name + "/" + rule, State: transport.Missing})
		}
	}
	return findings, nil
}
