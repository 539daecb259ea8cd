package rabbitmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// managedQueue is a queue in the API. The broker reports all but its name, type and arguments every
// 5 s.
type managedQueue struct {
	Type           string          `json:"type"`
	Arguments      json.RawMessage `json:"arguments"`      // an object, or an empty list for none
	Messages       *int64          `json:"messages"`       // with unsettled and dead-lettered ones; null when not known yet
	Ready          *int64          `json:"messages_ready"` // null when not known yet
	Policy         string          `json:"policy"`
	OperatorPolicy string          `json:"operator_policy"`
	Effective      json.RawMessage `json:"effective_policy_definition"` // an object, or an empty list for none; absent when not known yet
	DeliveryLimit  any             `json:"delivery_limit"`              // from 4.0: a number, or "unlimited"
}

// settings returns the entries of an object; none where the API has an empty list instead.
func settings(object json.RawMessage) map[string]any {
	var all map[string]any
	if json.Unmarshal(object, &all) != nil {
		return nil
	}
	return all
}

// number returns a value that is a number.
func number(value any) (n int64, ok bool) {
	f, ok := value.(float64)
	return int64(f), ok
}

// queue returns a queue, or fails with [transport.ErrNoQueue].
func (m *management) queue(ctx context.Context, name string) (q managedQueue, err error) {
	err = m.do(ctx, request{method: http.MethodGet, path: []string{"queues", m.vhost, name}, tag: "monitoring"}, &q)
	if errors.Is(err, errAbsent) {
		err = transport.ErrNoQueue
	}
	return q, wrap(err, "ask the management API for queue %q", name)
}

// reported returns a queue as soon as the broker has reported which policies apply to it.
func (m *management) reported(ctx context.Context, name string) (q managedQueue, err error) {
	err = m.poll(ctx, name, func(now managedQueue) (bool, error) {
		q = now
		return len(now.Effective) > 0 && string(now.Effective) != "null", nil
	})
	return q, err
}

// current is reported, and waits for a newer report where that on a limited queue is older than a
// policy for it, other than except.
func (m *management) current(ctx context.Context, name string, v version, except string) (managedQueue, error) {
	q, err := m.reported(ctx, name)
	if err != nil {
		return q, err
	}
	if limit, ok := q.limit(v); !ok || !limit.isLiftable(q) {
		return q, nil
	}
	if has, err := m.hasPolicyFor(ctx, name, except); err != nil || !has {
		return q, err
	}
	err = m.poll(ctx, name, func(now managedQueue) (bool, error) {
		q = now
		return now.Policy != "", nil
	})
	return q, err
}

// poll asks for a queue until done returns true.
func (m *management) poll(ctx context.Context, name string, done func(managedQueue) (bool, error)) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for {
		q, err := m.queue(ctx, name)
		if err != nil {
			return err
		}
		if ok, err := done(q); ok || err != nil {
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return wrap(err, "wait for the policies of queue %q in the management API", name)
		}
	}
}

// harmful are the settings of policies by which a queue drops or refuses messages. Where a queue
// has an argument and a policy has another number, RabbitMQ takes the smaller one.
var harmful = []string{"expires", "max-length", "max-length-bytes", "message-ttl"}

// harm returns a finding about a policy that drops or refuses messages of a queue.
func (q managedQueue) harm(name string) (f transport.Finding, ok bool) {
	all := settings(q.Effective)
	var found []string
	for _, key := range harmful {
		if value, ok := all[key]; ok {
			found = append(found, fmt.Sprintf("%s %v", key, value))
		}
	}
	return transport.Finding{
		Kind: "queue", Name: name, State: transport.Limited,
		Detail: fmt.Sprintf("policy %s sets %s: exclude the queue from its pattern, or leave that out",
			q.policies(), strings.Join(found, ", ")),
	}, len(found) > 0
}

// policies returns the names of the policies that apply to the queue.
func (q managedQueue) policies() string {
	var names []string
	for _, name := range []string{q.Policy, q.OperatorPolicy} {
		if name != "" {
			names = append(names, strconv.Quote(name))
		}
	}
	return strings.Join(names, " or ")
}
