// Package rabbitmqtopology creates and verifies what an endpoint needs at a RabbitMQ server, from outside.
package rabbitmqtopology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/endpointplan"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// maxName keeps the name of a queue, with what delays put before it, within AMQP's 255 bytes.
const maxName = 255 - len("to.queue.") - 2*28

// Check refuses names that no endpoint has at a RabbitMQ server.
func Check(e endpointplan.Endpoint) error {
	if err := e.Check(); err != nil {
		return err
	}
	for _, q := range e.Plan().Queues {
		if len(q.Name) > maxName {
			return fmt.Errorf("queue %.40q...: a name of %d bytes: %d is the most", q.Name, len(q.Name), maxName)
		}
	}
	return nil
}

// Delays is what all endpoints of a virtual host share for delayed messages.
func Delays() transport.Plan { return transport.Plan{Delays: true} }

// Report is what was found, and done about it.
type Report struct {
	OK      bool                `json:"ok"` // nothing was found
	DryRun  bool                `json:"dry_run,omitempty"`
	Created []Part              `json:"created,omitempty"`  // or would be, in a dry run
	Found   []transport.Finding `json:"found"`              // what is missing or differs, in the end
	NotRead string              `json:"not_read,omitempty"` // why policies were not looked at
}

// Part is a queue or an exchange.
type Part struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// Verify says what of a plan is missing or differs, and changes nothing.
func Verify(ctx context.Context, conn transport.Conn, plan transport.Plan) (Report, error) {
	verifier, ok := conn.(transport.Verifier)
	if !ok {
		return Report{}, errors.New("verify: the transport cannot compare its queues")
	}
	found, err := verifier.Verify(ctx, plan)
	if err != nil {
		return Report{}, fmt.Errorf("verify: %w", err)
	}
	return reportOf(found), nil
}

func reportOf(found []transport.Finding) Report {
	r := Report{Found: []transport.Finding{}} // never null in JSON
	for _, f := range found {
		if f.State == transport.Unread {
			r.NotRead = "policies were not looked at: add management=http://host:15672 to the URL, or see rabbitmqctl list_policies"
			continue
		}
		r.Found = append(r.Found, f)
	}
	r.OK = len(r.Found) == 0
	return r
}

// Preview says what Create would do, and changes nothing.
func Preview(ctx context.Context, conn transport.Conn, plan transport.Plan) (Report, error) {
	now, err := Verify(ctx, conn, plan)
	r := reportOf(slices.DeleteFunc(slices.Clone(now.Found), isMissing))
	r.DryRun, r.Created, r.NotRead = true, created(now.Found, r.Found), now.NotRead
	return r, err
}

func isMissing(f transport.Finding) bool { return f.State == transport.Missing }

// Create makes what is missing of a plan, sets the bindings again, and leaves alone what exists.
func Create(ctx context.Context, conn transport.Conn, plan transport.Plan) (Report, error) {
	before, err := Verify(ctx, conn, plan)
	if err != nil {
		return Report{}, err
	}
	if plan.Delays { // whole first: Install takes a part for the whole
		if err := rabbitmq.InstallDelays(ctx, conn); err != nil {
			return Report{}, fmt.Errorf("create: %w", err)
		}
	}
	installer, ok := conn.(transport.Installer)
	if !ok {
		return Report{}, errors.New("create: the transport cannot create queues")
	}
	if err := installer.Install(ctx, plan); err != nil {
		return Report{}, fmt.Errorf("create: %w", err)
	}
	after, err := Verify(ctx, conn, plan)
	after.Created = created(before.Found, after.Found)
	return after, err
}

// created is what was missing and is not any more.
func created(before, after []transport.Finding) (parts []Part) {
	for _, f := range before {
		if isMissing(f) && !slices.Contains(after, f) {
			parts = append(parts, Part{f.Kind, f.Name})
		}
	}
	return parts
}

// Err tells in one line what is not as it should be; nil when all is.
func (r Report) Err() error {
	var counts []string
	for _, state := range []transport.FindingState{transport.Missing, transport.Differs, transport.Unknown, transport.Limited} {
		n := 0
		for _, f := range r.Found {
			if f.State == state {
				n++
			}
		}
		if n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, words[state]))
		}
	}
	if len(counts) == 0 {
		return nil
	}
	return errors.New(strings.Join(counts, ", "))
}

var words = map[transport.FindingState]string{
	transport.Missing: "missing",
	transport.Differs: "with other arguments",
	transport.Unknown: "not to be compared, which needs the right to configure",
	transport.Limited: "limited by a policy",
}
