package asb

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// verifier is the part of a conn that compares queues and subscriptions with those of a plan.
type verifier struct {
	*core
	subscriptions *subscriptions
}

// Verify implements [transport.Verifier]. Without the right to manage the namespace, existing
// queues are [transport.Unknown], and topics are not compared.
func (ve *verifier) Verify(ctx context.Context, plan transport.Plan) ([]transport.Finding, error) {
	ctx, cancel := joined(ctx, ve.ctx)
	defer cancel()
	var findings []transport.Finding
	for _, q := range plan.Queues {
		f, err := ve.verifyQueue(ctx, q)
		if err != nil {
			return nil, ve.orClosed(wrap(managed(err), "verify queue %q", q.Name))
		}
		if f.State != "" {
			f.Kind, f.Name = "queue", q.Name
			findings = append(findings, f)
		}
	}
	for _, topic := range ve.published(plan.Types) {
		path, err := ve.naming.entity(topic)
		if err != nil {
			return nil, err
		}
		found, err := ve.admin.GetTopic(ctx, path, nil)
		if err != nil && !unmanageable(err) {
			return nil, ve.orClosed(wrap(managed(err), "verify topic %q", topic))
		}
		if err == nil && found == nil {
			findings = append(findings, transport.Finding{Kind: "topic", Name: topic, State: transport.Missing})
		}
	}
	return findings, nil
}

// verifyQueue returns a finding without a State when the queue is fit for the endpoint.
func (ve *verifier) verifyQueue(ctx context.Context, q transport.Queue) (transport.Finding, error) {
	path, err := ve.naming.entity(q.Name)
	if err != nil {
		return transport.Finding{}, err
	}
	found, err := ve.admin.GetQueue(ctx, path, nil)
	unknown := unmanageable(err)
	if unknown {
		err = ve.exists(ctx, path)
	}
	switch {
	case errors.Is(plain(err), transport.ErrNoQueue), err == nil && found == nil && !unknown:
		return transport.Finding{State: transport.Missing}, nil
	case err != nil:
		return transport.Finding{}, err
	case unknown:
		return transport.Finding{State: transport.Unknown, Detail: errManage.Error()}, nil
	}
	if unfit := ve.unfit(q, &found.QueueProperties); len(unfit) > 0 {
		return transport.Finding{State: transport.Differs, Detail: strings.Join(unfit, "; ")}, nil
	}
	return transport.Finding{}, nil
}

// VerifySubscriptions returns a finding for each subscription, and each rule of one, that Subscribe
// would create for queue and types: none when all is there. It changes nothing. It needs the right
// to manage the namespace.
func (ve *verifier) VerifySubscriptions(
	ctx context.Context, queue string, types []string,
) ([]transport.Finding, error) {
	ctx, cancel := joined(ctx, ve.ctx)
	defer cancel()
	var findings []transport.Finding
	for _, s := range ve.ns.Subscriptions(queue, types...) {
		found, err := ve.verifySubscription(ctx, s)
		if err != nil {
			return nil, ve.orClosed(wrap(managed(err), "verify subscription %q of topic %q", s.Name, s.Topic))
		}
		findings = append(findings, found...)
	}
	return findings, nil
}

func (ve *verifier) verifySubscription(
	ctx context.Context, s Subscription,
) (findings []transport.Finding, err error) {
	name := s.Topic + "/" + s.Name
	found, err := ve.subscriptions.findSubscription(ctx, s)
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
		found, err := ve.admin.GetRule(ctx, s.Topic, s.Name, rule, nil)
		if err := unlessMissing(err); err != nil {
			return nil, err
		}
		if found == nil {
			findings = append(findings, transport.Finding{Kind: "rule", Name: name + "/" + rule, State: transport.Missing})
		}
	}
	return findings, nil
}
