package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// policiesOnAll are policies that an administrator may put on all queues. RabbitMQ applies some of
// them to one type of queues only. The short form of the test has the first shortPolicies.
var policiesOnAll = []string{
	`{"max-length":10,"overflow":"drop-head"}`, `{"max-length":10}`, `{"message-ttl":1000}`,
	`{"max-length":10,"overflow":"reject-publish"}`, `{"max-length":10,"overflow":"reject-publish-dlx"}`, `{"max-length-bytes":1000}`,
	`{"max-length-bytes":1000,"overflow":"reject-publish"}`, `{"message-ttl":1}`, `{"expires":60000}`, `{"overflow":"drop-head"}`,
	`{"overflow":"reject-publish"}`, `{"delivery-limit":1}`, `{"dead-letter-exchange":"amq.fanout"}`,
	`{"dead-letter-exchange":"amq.fanout","message-ttl":1000}`, `{"dead-letter-exchange":"amq.fanout","max-length":10}`,
	`{"dead-letter-strategy":"at-least-once"}`, `{"queue-mode":"lazy"}`, `{"max-in-memory-length":10}`,
}

const shortPolicies = 3

// Verify names each policy by which a queue loses messages that the broker has accepted. Messages
// wait, are sent, received and returned while the policy is put on all queues and removed again.
func TestChaosPoliciesThatLoseAreNamed(t *testing.T) {
	policies := policiesOnAll
	if !brokertest.Fault(t) {
		policies = policies[:shortPolicies]
	}
	node := rabbitmq.WholeNode(t)
	u, err := url.Parse(node.URL)
	must(t, err)
	vhost := strings.TrimPrefix(u.Path, "/")
	for _, queueType := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		c := open(t, node.URL, func(tr *rabbitmq.Transport) {
			tr.QueueType, tr.Management = queueType, rabbitmq.ManagementAPI()
		})
		for i, policy := range policies {
			t.Run(fmt.Sprintf("%s/%d", queueType, i), func(t *testing.T) {
				queue := install(t, c, "orders")
				// A name of its own, because the management API reports an earlier policy for a
				// while.
				l := &losing{t: t, c: c, node: node, vhost: vhost, queue: queue, policy: fmt.Sprintf("%s-%d", queueType, i)}
				named := l.under(policy)
				lost := l.lost()
				t.Logf("%s %s: %d accepted, %d refused, %d lost, named by Verify: %v", queueType, policy, len(l.accepted), l.refused, lost, named)
				if lost > 0 && !named {
					t.Errorf("the policy %s has lost %d of %d messages on %s queues, and Verify does not name the policy",
						policy, lost, len(l.accepted), queueType)
				}
				if i == 0 && lost == 0 {
					t.Error("the policy has lost nothing: the test would not see a loss")
				}
				if err := c.(transport.Remover).Remove(within(t), queue); err != nil && !errors.Is(err, transport.ErrNoQueue) {
					t.Error(err)
				}
			})
		}
	}
}

// losing is a queue with messages, on which a policy is put.
type losing struct {
	t            *testing.T
	c            transport.Conn
	node         brokertest.RabbitMQNode
	vhost, queue string
	policy       string // name
	accepted     []string
	seen         []string
	refused      int
}

// under puts the policy on all queues while messages are sent, received and returned, and takes it
// off. It reports whether Verify has named the policy.
func (l *losing) under(policy string) (named bool) {
	l.t.Helper()
	l.send(200)
	l.node.Control("set_policy", "-p", l.vhost, l.policy, ".*", policy, "--apply-to", "queues")
	l.awaitPolicy(true)
	named = l.isNamed()
	l.send(100)
	if r, err := l.c.OpenReceiver(within(l.t), transport.ReceiverOptions{Queue: l.queue}); err == nil { // the policy may have deleted the queue
		r.Window(10)
		for range 3 {
			for _, d := range l.some(r, 10) {
				_ = d.Retry(within(l.t))
			}
		}
		must(l.t, r.Close())
	}
	l.node.Control("clear_policy", "-p", l.vhost, l.policy)
	l.awaitPolicy(false)
	l.send(50)
	return named
}

// isNamed reports whether Verify names the policy within some seconds: the management API reports
// it later than it applies.
func (l *losing) isNamed() bool {
	ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Second)
	defer cancel()
	for ; ctx.Err() == nil; <-time.After(100 * time.Millisecond) {
		for _, f := range verify(l.t, l.c, transport.Plan{Queues: []transport.Queue{{Name: l.queue}}}) {
			if strings.Contains(f.Detail, strconv.Quote(l.policy)) {
				return true
			}
		}
	}
	return false
}

// send sends messages of 100 bytes, and records those that the broker accepts.
func (l *losing) send(n int) {
	for range n {
		id := fmt.Sprintf("%s-%d", l.queue, len(l.accepted)+l.refused)
		if err := dispatch(l.c, send1(l.queue, message(id, strings.Repeat("x", 100)))); err != nil {
			l.refused++
			continue
		}
		l.accepted = append(l.accepted, id)
	}
}

// awaitPolicy waits until the queue has the policy or no policy, at most 5 s: RabbitMQ does not
// apply every policy to each type of queues, and a policy may have deleted the queue.
func (l *losing) awaitPolicy(on bool) {
	want := "none"
	if on {
		want = `<<"` + l.policy + `">>`
	}
	l.node.Eval(fmt.Sprintf(`(fun Wait(0) -> ok; Wait(N) -> case rabbit_amqqueue:lookup(rabbit_misc:r(<<"%s">>, queue, <<"%s">>)) of `+
		`{ok, Q} -> case rabbit_policy:name(Q) of %s -> ok; _ -> timer:sleep(50), Wait(N-1) end; _ -> gone end end)(100).`, l.vhost, l.queue, want))
}

// some receives up to n messages within a second.
func (l *losing) some(r transport.Receiver, n int) []transport.Delivery {
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Second)
	defer cancel()
	ds, _ := r.Receive(ctx, n) // nothing arrives where the policy has dropped all
	return ds
}

// lost receives all messages that are left in the queue and in the driver's queue of dead letters.
// It returns the number of messages that the broker has accepted and that are missing.
func (l *losing) lost() int {
	l.t.Helper()
	l.drain(l.queue)
	l.drain("test.dead-letters")
	return len(l.accepted) - len(l.seen)
}

// drain completes the messages of a queue, if it exists.
func (l *losing) drain(queue string) {
	l.t.Helper()
	r, err := l.c.OpenReceiver(within(l.t), transport.ReceiverOptions{Queue: queue})
	if errors.Is(err, transport.ErrNoQueue) {
		return
	}
	must(l.t, err)
	r.Window(100)
	for quiet := 0; quiet < 2 && len(l.seen) < len(l.accepted); {
		ds := l.some(r, 100)
		if quiet++; len(ds) > 0 {
			quiet = 0
		}
		for _, d := range ds {
			if id := d.Message().ID; slices.Contains(l.accepted, id) && !slices.Contains(l.seen, id) {
				l.seen = append(l.seen, id)
			}
			must(l.t, d.Complete(within(l.t)))
		}
	}
	must(l.t, r.Close())
}
