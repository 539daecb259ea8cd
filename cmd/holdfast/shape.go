package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/endpointplan"
)

// shaping is what the commands that create and verify share.
type shaping struct {
	creates   bool
	queueType string
	asJSON    bool
	dryRun    bool
}

func (s *shaping) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.asJSON, "json", false, "print JSON: one object")
	if s.creates {
		cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "say what would be created, and what differs; create nothing")
	}
}

func endpointFlags(cmd *cobra.Command, e *endpointplan.Endpoint) {
	flags := cmd.Flags()
	flags.StringArrayVar(&e.Instances, "instance", nil, "`ID` of an instance with a queue of its own; may be repeated")
	flags.StringVar(&e.Error, "error", "error", "the error `queue`")
	flags.StringVar(&e.Audit, "audit", "", "the audit `queue`; none unless set")
}

func oneEndpoint(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want the name of one endpoint, have %d names", len(args))
	}
	return nil
}

// shaped is what came of creating or verifying, in lines with tabs.
type shaped struct {
	report  any // for JSON
	created []string
	found   []string
	dryRun  bool
}

func (a *app) printShaped(s shaped, what string, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(a.out).Encode(s.report)
	}
	created := "created"
	if s.dryRun {
		created = "would create"
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, line := range s.created {
		fmt.Fprintf(w, "%s\t%s\n", created, line)
	}
	for _, line := range s.found {
		fmt.Fprintln(w, line)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(s.found) == 0 && !s.dryRun {
		fmt.Fprintf(a.out, "%s: all is there, as it should be\n", what)
	}
	return nil
}
