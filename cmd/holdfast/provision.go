package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

// provisioning holds the flags of the commands that create and verify.
type provisioning struct {
	creates, dryRun, asJSON bool
	adopts                  bool     // takes tables of NServiceBus over
	events                  []string // to verify the subscriptions of
}

func (p *provisioning) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "print JSON: one object")
	if p.creates {
		cmd.Flags().BoolVar(&p.adopts, "adopt", false, "take over tables that NServiceBus has created, and rewrite those of earlier versions with text ids; PostgreSQL and SQL Server")
		cmd.Flags().BoolVar(&p.dryRun, "dry-run", false, "show the parts that would be created and those that differ; create nothing")
	}
}

// report is the result of creating or verifying.
type report struct {
	OK      bool                `json:"ok"` // nothing was found
	DryRun  bool                `json:"dry_run,omitempty"`
	Created []part              `json:"created,omitempty"`  // or would be, in a dry run
	Changed []part              `json:"changed,omitempty"`  // by --adopt
	Found   []transport.Finding `json:"found"`              // missing or different parts that remain
	Notes   []transport.Finding `json:"notes,omitempty"`    // which are no differences
	NotRead string              `json:"not_read,omitempty"` // the settings that were not compared, and why
}

// part is a queue or another part of a plan.
type part struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// site is the broker of an endpoint or the database of its outbox, with the plan of what the
// endpoint needs there.
type site struct {
	target
	plan transport.Plan
}

// provision creates or verifies the parts of an endpoint at its broker, the first site, and at the
// further sites, and prints one report. It returns an error if parts are missing or differ.
func (a *app) provision(
	ctx context.Context, p *provisioning, endpoint, title string, sites ...site,
) error {
	var before, after []transport.Finding
	for i, s := range sites {
		events := p.events
		if i > 0 {
			events = nil
		}
		err := withTarget(ctx, a, s.target, endpoint, "verify queues", func(conn transport.Verifier) error {
			was, is, err := p.provisionAt(ctx, s, conn, endpoint, events)
			before, after = append(before, was...), append(after, is...)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
	}
	r := p.report(before, after)
	err := errors.Join(a.show(p.asJSON, r, func(w io.Writer) { r.print(w, title) }), r.err())
	if err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	return nil
}

// provisionAt creates or verifies the parts at one site. It returns the findings before and after.
func (p *provisioning) provisionAt(
	ctx context.Context, s site, conn transport.Verifier, endpoint string, events []string,
) (before, after []transport.Finding, err error) {
	if before, err = find(ctx, conn, endpoint, s.plan, events); err != nil || !p.creates || p.dryRun {
		return before, before, err
	}
	if err := install(ctx, s.driver, conn, s.plan); err != nil {
		return nil, nil, fmt.Errorf("create: %w", err)
	}
	after, err = find(ctx, conn, endpoint, s.plan, events)
	return before, after, err
}

// report returns the report of the findings before and after creating; without creating they are
// the same.
func (p *provisioning) report(before, after []transport.Finding) report {
	r := report{DryRun: p.dryRun, Found: []transport.Finding{}}
	for _, f := range before {
		if f.State == transport.Missing && p.creates && (p.dryRun || !slices.Contains(after, f)) {
			r.Created = append(r.Created, part{f.Kind, f.Name})
		}
		changed := part{f.Kind, f.Name}
		if f.State == transport.Differs && !slices.Contains(after, f) && !slices.Contains(r.Changed, changed) {
			r.Changed = append(r.Changed, changed)
		}
	}
	for _, f := range after {
		switch {
		case f.State == transport.Unread:
			r.NotRead = f.Detail
		case f.State == transport.Noted:
			r.Notes = append(r.Notes, f)
		case !p.dryRun || f.State != transport.Missing:
			r.Found = append(r.Found, f)
		}
	}
	r.OK = len(r.Found) == 0
	return r
}

// find returns the differences between a plan, with the subscriptions to events, and the broker.
func find(
	ctx context.Context, v transport.Verifier, queue string, plan transport.Plan, events []string,
) ([]transport.Finding, error) {
	found, err := v.Verify(ctx, plan)
	if err == nil && len(events) > 0 {
		s, ok := v.(transport.SubscriptionVerifier)
		if !ok {
			return nil, usagef("--event: the transport cannot verify subscriptions")
		}
		var more []transport.Finding
		more, err = s.VerifySubscriptions(ctx, queue, events)
		found = append(found, more...)
	}
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	return found, nil
}

// install creates the missing parts of a plan.
func install(ctx context.Context, d driver, conn any, plan transport.Plan) error {
	if c, ok := conn.(transport.Conn); ok && plan.Delays && d.delays != nil {
		if err := d.delays(ctx, c); err != nil {
			return err
		}
	}
	installer, ok := conn.(transport.Installer)
	if !ok {
		return errors.New("the transport cannot create queues")
	}
	return installer.Install(ctx, plan)
}

func (r report) print(w io.Writer, title string) {
	created := "created"
	if r.DryRun {
		created = "would create"
	}
	for _, p := range r.Created {
		fmt.Fprintf(w, "%s\t%s\t%s\n", created, p.Kind, p.Name)
	}
	for _, p := range r.Changed {
		fmt.Fprintf(w, "taken over\t%s\t%s\n", p.Kind, p.Name)
	}
	for _, f := range slices.Concat(r.Found, r.Notes) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.State, f.Kind, f.Name, f.Detail)
	}
	if r.OK && !r.DryRun {
		fmt.Fprintf(w, "%s: all is there, as it should be\n", title)
	}
	if r.NotRead != "" {
		fmt.Fprintln(w, r.NotRead)
	}
}

// err returns the findings in one line, in the order of their weight; nil when there are none.
func (r report) err() error {
	var counts []string
	for _, s := range []struct {
		state transport.FindingState
		text  string
	}{
		{transport.Missing, "missing"},
		{transport.Differs, "with other settings"},
		{transport.Unknown, "that cannot be compared without the right to configure"},
		{transport.Limited, "limited by the broker"},
	} {
		n := 0
		for _, f := range r.Found {
			if f.State == s.state {
				n++
			}
		}
		if n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, s.text))
		}
	}
	if len(counts) == 0 {
		return nil
	}
	return errors.New(strings.Join(counts, ", "))
}

// endpointSpec is an endpoint as the flags describe it.
type endpointSpec struct {
	name      string
	instances []string // with a queue of their own
	errors    string   // the error queue
	audit     string   // the audit queue; "" is none
	types     []string
	outbox    *target // the database of the outbox; nil is none
	inbox     bool    // ids of handled messages are recorded: in the outbox's database, or else in that of the queues
}

// databaseFlags adds the flags of the outbox and the inbox. They have no environment variable: an
// exported database must not make a command delete or miss an outbox that was not asked for.
func (e *endpointSpec) databaseFlags(a *app, cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.database, "outbox", "", "the database of the endpoint's outbox, by its `URL`")
	cmd.Flags().BoolVar(&e.inbox, "inbox", false, "the endpoint records handled messages (default true with --outbox)")
}

// database completes the specification by the flags of the outbox and the inbox.
func (e *endpointSpec) database(a *app, cmd *cobra.Command) (err error) {
	if a.database != "" {
		e.outbox, err = a.outbox()
	}
	if !cmd.Flags().Changed("inbox") {
		e.inbox = e.outbox != nil
	}
	return err
}

func (e *endpointSpec) instanceFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&e.instances, "instance", nil, "`ID` of an instance with a queue of its own; may be repeated")
}

// queues returns the queues that belong to the endpoint alone.
func (e *endpointSpec) queues() []transport.Queue {
	queues := []transport.Queue{{Name: e.name}, {Name: e.name + ".quarantine", Counted: true}}
	for _, instance := range e.instances {
		queues = append(queues, transport.Queue{Name: e.name + "-" + instance})
	}
	return queues
}

// plan returns what the installer of the endpoint creates.
func (e *endpointSpec) plan() transport.Plan {
	plan := transport.Plan{Queues: e.queues(), Delays: true}
	for _, name := range []string{e.errors, e.audit} {
		if name != "" {
			plan.Queues = append(plan.Queues, transport.Queue{Name: name, Shared: true})
		}
	}
	for _, t := range e.types {
		plan.Types = append(plan.Types, []string{t})
	}
	if e.inbox && e.outbox == nil {
		plan.Inboxes = []string{e.name + inboxSuffix}
		plan.Queues = append(plan.Queues, transport.Queue{Name: e.name + outboxSuffix, Timers: true})
	}
	return plan
}

// sites returns the broker t and the database of the outbox, with what the installer of the
// endpoint creates there.
func (e *endpointSpec) sites(t target) []site {
	sites := []site{{t, e.plan()}}
	if e.outbox != nil {
		sites = append(sites, site{*e.outbox, outboxPlan(e.name, e.inbox)})
	}
	return sites
}

// outboxPlan returns what the installer of the endpoint of that name creates in the database of its
// outbox.
func outboxPlan(endpoint string, inbox bool) transport.Plan {
	plan := queuePlan(endpoint + outboxSuffix)
	plan.Queues[0].Timers = true
	if inbox {
		plan.Inboxes = []string{endpoint + inboxSuffix}
	}
	return plan
}

// check refuses names that no endpoint has. The most bytes of a name are those of the transport; 0
// is no bound.
func (e *endpointSpec) check(most int) error {
	switch {
	case e.name == "":
		return usagef("the endpoint has no name")
	case e.errors == "":
		return usagef("an endpoint has an error queue")
	case slices.Contains(e.instances, ""):
		return usagef("an instance has no id")
	}
	for _, q := range e.plan().Queues {
		if most > 0 && len(q.Name) > most {
			return usagef("queue %.40q...: a name of %d bytes: %d is the most", q.Name, len(q.Name), most)
		}
	}
	return nil
}
