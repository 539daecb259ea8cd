package rabbitmq_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// hostile is a name with characters that mean something to expressions, URLs and shells.
const hostile = `it's $(x) "q" (a|b)* ü%2F?#/\`

func TestInstallLiftsTheDeliveryLimitOfEachQueueAlone(t *testing.T) {
	t.Parallel()
	l := newLimiting(t, "shop/eu west")
	l.declare(t, "sales-v11", nil) // "sales.v1+" as an expression matches it
	c, logs := openLogged(t, l.bare())
	plan := transport.Plan{Queues: []transport.Queue{
		{Name: "sales.v1+"}, {Name: "sales.v1+.quarantine", Counted: true}, {Name: hostile}, {Name: "error", Shared: true},
	}}
	must(t, c.(transport.Installer).Install(patiently(t), plan))
	want := make(map[string]policy)
	for _, q := range plan.Queues {
		name := "nsb." + q.Name + ".delivery-limit"
		want[name] = policy{
			Name: name, Pattern: "^" + regexp.QuoteMeta(q.Name) + "$", Definition: map[string]any{"delivery-limit": 100000.0},
			ApplyTo: target(t, l),
		}
	}
	if diff := cmp.Diff(want, l.policies(t)); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
	if found := limitedOf(verify(t, c, plan)); len(found) > 0 || logs.String() != "" {
		t.Errorf("after Install: %v, %s", found, logs)
	}
	other := transport.Plan{Queues: []transport.Queue{{Name: "sales-v11"}}}
	if found := limitedOf(verify(t, c, other)); len(found) != 1 || !strings.Contains(found["sales-v11"], "more than 20 times") {
		t.Errorf("a queue without a policy: %v", found)
	}
	must(t, c.(transport.Installer).Install(patiently(t), plan))
	if n := l.puts.Load(); n != 4 {
		t.Errorf("policies were created %d times, want 4", n)
	}
	returnsOften(t, l, "sales.v1+", 101)

	must(t, c.(transport.Remover).Remove(within(t), hostile))
	if _, ok := l.policies(t)["nsb."+hostile+".delivery-limit"]; ok || len(l.policies(t)) != 3 {
		t.Error("the policy of a deleted queue exists, or that of another does not")
	}
}

// target is the target of policies for quorum queues: from 3.12 they have one of their own.
func target(t *testing.T, l *limiting) string {
	t.Helper()
	if strings.HasPrefix(versionOf(t, l.real), "3.") {
		return "queues"
	}
	return "quorum_queues"
}

// returnsOften checks that a queue keeps a message that returns n times.
func returnsOften(t *testing.T, l *limiting, queue string, n int) {
	t.Helper()
	c := open(t, l.real, deliveryLimit(rabbitmq.None))
	must(t, dispatch(c, send1(queue, message("kept", "x"))))
	r := receive(t, c, queue, 1)
	for range n {
		must(t, next(t, r).Retry(t.Context()))
	}
	must(t, next(t, r).Complete(t.Context()))
}

// Install replaces no policy, and names policies that limit a queue.
func TestInstallReplacesNoPolicy(t *testing.T) {
	t.Parallel()
	l := newLimiting(t, "other")
	tests := map[string]struct {
		args                   amqp.Table
		policy, operatorPolicy string
		wants                  []string // in the finding and in the log; none: the limit is lifted
	}{
		"none":           {},
		"unrelated":      {policy: `{"max-length":100000}`, wants: []string{"Only one policy", `"unrelated"`, `"delivery-limit":100000`}},
		"lifted":         {policy: `{"delivery-limit":100000,"max-length":100000}`},
		"of our advice":  {policy: `{"delivery-limit":100,"dead-letter-exchange":""}`, wants: []string{`"of our advice"`, "dead-letters", "no endpoint of NServiceBus starts"}},
		"of an operator": {operatorPolicy: `{"delivery-limit":7}`, wants: []string{`"of an operator"`, "more than 7 times", "NServiceBus"}},
		"operator":       {operatorPolicy: `{"max-length":100000}`},
		"argument":       {args: amqp.Table{"x-delivery-limit": 5}, wants: []string{"more than 5 times", "x-delivery-limit", "delete it while it is empty"}},
	}
	var plan transport.Plan
	for name, test := range tests {
		l.declare(t, name, test.args)
		plan.Queues = append(plan.Queues, transport.Queue{Name: name})
		if test.policy != "" {
			l.Control("set_policy", "--vhost="+l.vhost, name, "^"+name+"$", test.policy, "--apply-to", "queues")
		}
		if test.operatorPolicy != "" {
			l.Control("set_operator_policy", "--vhost="+l.vhost, name, "^"+name+"$", test.operatorPolicy, "--apply-to", "queues")
		}
	}
	c, logs := openLogged(t, l.bare())
	must(t, c.(transport.Installer).Install(patiently(t), plan))
	warned, found := warnings(t, logs), limitedOf(verify(t, c, plan))
	for name, test := range tests {
		if w := warned[name]; (len(test.wants) > 0) != (w.Reason != "") || w.Command != "" {
			t.Errorf("%s: the log says %+v", name, w)
		}
		if text, isLimited := found[name], strings.Contains(found[name], "the broker d"); isLimited != (len(test.wants) > 0) {
			t.Errorf("%s: found is %q", name, text)
		}
		for _, want := range test.wants {
			if !strings.Contains(found[name], want) || !strings.Contains(warned[name].Reason, want) {
				t.Errorf("%s: no %q in the finding %q or in the log %q", name, want, found[name], warned[name].Reason)
			}
		}
	}
	// An operator policy may be newer than the broker's report. Then there is a policy that lifts
	// nothing.
	may := []string{"nsb.none.delivery-limit", "nsb.operator.delivery-limit", "nsb.of an operator.delivery-limit"}
	for name := range l.policies(t) {
		if strings.HasPrefix(name, "nsb.") && !slices.Contains(may, name) {
			t.Errorf("policy %q was created", name)
		}
	}
}

// Verify reports a policy that keeps NServiceBus from starting. With the default settings a policy
// of our older advice is found too: NServiceBus does not start on its queue.
func TestVerifyNamesABlockingPolicy(t *testing.T) {
	t.Parallel()
	node := rabbitmq.OwnNode(t)
	if _, err := rawChannel(t, node.URL).QueueDeclare("test", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	vhost := node.URL[strings.LastIndex(node.URL, "/")+1:]
	node.Control("set_policy", "-p", vhost, "test-net", "^test$", `{"delivery-limit":100,"dead-letter-exchange":""}`, "--apply-to", "queues")
	management := rabbitmq.ManagementAPI()
	for _, limit := range []int{0, rabbitmq.None} {
		c, _ := openLogged(t, &rabbitmq.Transport{URL: node.URL, Management: management, DeliveryLimit: limit})
		plan := transport.Plan{Queues: []transport.Queue{{Name: "test"}}}
		must(t, c.(transport.Installer).Install(patiently(t), plan))
		text := limitedOf(verify(t, c, plan))["test"]
		for _, want := range []string{"more than 100 times", `"test-net"`, "no endpoint of NServiceBus starts on the queue"} {
			if !strings.Contains(text, want) {
				t.Errorf("limit %d: no %q in the finding %q", limit, want, text)
			}
		}
	}
}

func TestWithoutTheRightToCreatePoliciesTheCommandDoes(t *testing.T) {
	t.Parallel()
	l := newLimiting(t, "-shop's")
	l.Control("add_user", "reader", "s3cret")
	t.Cleanup(func() { l.Control("delete_user", "reader") })
	l.Control("set_user_tags", "reader", "monitoring")
	l.Control("set_permissions", "--vhost="+l.vhost, "reader", "^$", "^$", ".*")
	tr := l.bare()
	tr.Management = strings.Replace(l.api, "://", "://reader:s3cret@", 1)
	plan := transport.Plan{Queues: []transport.Queue{{Name: "sales"}, {Name: hostile}}}
	c, logs := openLogged(t, tr)
	must(t, c.(transport.Installer).Install(patiently(t), plan))
	warned := warnings(t, logs)
	if strings.Contains(logs.String(), "s3cret") || len(warned) != 2 || len(l.policies(t)) != 0 {
		t.Errorf("the log says %s", logs)
	}
	for name, w := range warned {
		if !strings.Contains(w.Reason, `"policymaker"`) {
			t.Errorf("%s: %+v", name, w)
		}
		// What the log says of its own session is what Verify says of the policy that is missing.
		if found := limitedOf(verify(t, c, plan))[name]; !strings.HasSuffix(found, ": "+w.Command) {
			t.Errorf("%s: found is %q, the command %q", name, found, w.Command)
		}
		args := words(t, w.Command)
		if i := slices.Index(args, "quorum_queues"); i > 0 {
			args[i] = target(t, l)
		}
		l.Control(args...)
	}
	for name := range warned {
		if p := l.policies(t)["nsb."+name+".delivery-limit"]; p.Pattern != "^"+regexp.QuoteMeta(name)+"$" || p.Definition["delivery-limit"] != 100000.0 {
			t.Errorf("%s: the command has created %+v", name, p)
		}
	}
	if found := limitedOf(verify(t, c, plan)); len(found) > 0 { // though the broker reports the policies late
		t.Errorf("after the commands: %v", found)
	}
}

// patiently bounds waiting for the broker's reports on policies.
func patiently(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// warning is a record about a queue.
type warning struct{ Queue, Reason, Command, Msg, Advice string }

// warnings returns the last warning about each queue that has a reason.
func warnings(t *testing.T, logs fmt.Stringer) map[string]warning {
	t.Helper()
	all := make(map[string]warning)
	for line := range strings.Lines(logs.String()) {
		var w warning
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatal(err)
		}
		if w.Reason != "" {
			all[w.Queue] = w
		}
	}
	return all
}

// words returns the words of a command, as a shell reads them.
func words(t *testing.T, command string) []string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `rabbitmqctl() { printf '%s\0' "$@"; }; `+command).Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}
