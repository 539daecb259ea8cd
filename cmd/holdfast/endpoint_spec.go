package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

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
