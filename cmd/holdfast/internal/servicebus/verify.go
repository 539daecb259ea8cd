package servicebus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// State is what is wrong with a queue, a subscription or a rule.
type State string

// What may be wrong.
const (
	Missing State = "missing"
	Differs State = "differs" // in a way that messages do not outlive, or are not received by
)

// Finding is something that is not as it should be.
type Finding struct {
	State  State  `json:"state"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Detail string `json:"detail,omitempty"`
}

// Report is what was found, and done about it.
type Report struct {
	OK      bool      `json:"ok"` // nothing was found
	DryRun  bool      `json:"dry_run,omitempty"`
	Created []string  `json:"created,omitempty"` // queues; or those that would be, in a dry run
	Found   []Finding `json:"found"`             // what is missing or differs, in the end
}

// Verify says what of a plan is missing or differs, and changes nothing.
func (n *Namespace) Verify(ctx context.Context, plan transport.Plan) (Report, error) {
	r := Report{Found: []Finding{}} // never null in JSON
	for _, q := range plan.Queues {
		found, err := n.client.GetQueue(ctx, n.prefix+q.Name, nil)
		if err != nil && status(err) != http.StatusNotFound {
			return r, fmt.Errorf("look at queue %q: %w", q.Name, short(err))
		}
		if found == nil {
			r.Found = append(r.Found, Finding{Missing, "queue", q.Name, ""})
			continue
		}
		if why := differs(q, &found.QueueProperties); why != "" {
			r.Found = append(r.Found, Finding{Differs, "queue", q.Name, why})
		}
	}
	r.OK = len(r.Found) == 0
	return r, nil
}

// VerifySubscriptions says which of an endpoint's subscriptions are missing or lead elsewhere, and changes nothing.
func (n *Namespace) VerifySubscriptions(ctx context.Context, wanted []asb.Subscription) ([]Finding, error) {
	var found []Finding
	for _, s := range wanted {
		name := s.Topic + "/" + s.Name
		there, err := n.client.GetSubscription(ctx, s.Topic, s.Name, nil)
		if err != nil && status(err) != http.StatusNotFound {
			return nil, fmt.Errorf("look at subscription %q: %w", name, short(err))
		}
		if there == nil {
			found = append(found, Finding{Missing, "subscription", name, ""})
			continue
		}
		if to := valueOr(there.ForwardTo, ""); !leadsTo(to, s.Queue) {
			found = append(found, Finding{Differs, "subscription", name, fmt.Sprintf("forwards to %q in the place of %q", to, s.Queue)})
		}
		for _, rule := range s.Rules {
			there, err := n.client.GetRule(ctx, s.Topic, s.Name, rule, nil)
			if err != nil && status(err) != http.StatusNotFound {
				return nil, fmt.Errorf("look at rule %q of %q: %w", rule, name, short(err))
			}
			if there == nil {
				found = append(found, Finding{Missing, "rule", name + "/" + rule, ""})
			}
		}
	}
	return found, nil
}

// leadsTo compares a queue with what the administration says, which may be a URL.
func leadsTo(to, queue string) bool {
	return strings.EqualFold(to, queue) || strings.HasSuffix(strings.ToLower(to), "/"+strings.ToLower(queue))
}

// enough is the least number of hand-outs that an endpoint's own counting stays below by far.
const enough = 25

// differs says what keeps an endpoint from working with a queue.
func differs(q transport.Queue, p *admin.QueueProperties) string {
	var why []string
	if p.RequiresSession != nil && *p.RequiresSession {
		why = append(why, "requires sessions, and cannot be received from")
	}
	if p.ForwardTo != nil && *p.ForwardTo != "" {
		why = append(why, "forwards its messages to "+*p.ForwardTo)
	}
	if p.Status != nil && *p.Status != admin.EntityStatusActive {
		why = append(why, "is "+string(*p.Status))
	}
	if most := valueOr(p.MaxDeliveryCount, math.MaxInt32); !q.Shared && most < enough {
		why = append(why, fmt.Sprintf("gives messages up after %d hand-outs: let it be 100", most))
	}
	return strings.Join(why, "; ")
}

func valueOr[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}

// Create makes what is missing of a plan, by the driver's own installer, and leaves alone what exists.
func (n *Namespace) Create(ctx context.Context, conn transport.Conn, plan transport.Plan) (Report, error) {
	before, err := n.Verify(ctx, plan)
	if err != nil {
		return before, err
	}
	installer, ok := conn.(transport.Installer)
	if !ok {
		return before, errors.New("the transport cannot create queues")
	}
	if err := installer.Install(ctx, plan); err != nil {
		return before, err
	}
	after, err := n.Verify(ctx, plan)
	after.Created = created(before, after)
	return after, err
}

// Preview says what Create would do, and changes nothing.
func (n *Namespace) Preview(ctx context.Context, plan transport.Plan) (Report, error) {
	now, err := n.Verify(ctx, plan)
	r := Report{DryRun: true, Found: []Finding{}}
	for _, f := range now.Found {
		if f.State != Missing {
			r.Found = append(r.Found, f)
		}
	}
	r.OK, r.Created = len(r.Found) == 0, created(now, r)
	return r, err
}

// created is what was missing and is not any more.
func created(before, after Report) (queues []string) {
	still := make(map[string]bool)
	for _, f := range after.Found {
		still[f.Name] = f.State == Missing
	}
	for _, f := range before.Found {
		if f.State == Missing && !still[f.Name] {
			queues = append(queues, f.Name)
		}
	}
	return queues
}

// Err tells in one line what is not as it should be; nil when all is.
func (r Report) Err() error {
	missing, differing := 0, 0
	for _, f := range r.Found {
		if f.State == Missing {
			missing++
		} else {
			differing++
		}
	}
	var counts []string
	if missing > 0 {
		counts = append(counts, fmt.Sprintf("%d missing", missing))
	}
	if differing > 0 {
		counts = append(counts, fmt.Sprintf("%d not fit for it", differing))
	}
	if counts == nil {
		return nil
	}
	return errors.New(strings.Join(counts, ", "))
}
