package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

const sagasShowHelp = `Show an instance of a saga: its id, which the messages that it sends have in the header NServiceBus.OriginatingSagaId, its
state, what the framework stores beside the state, and the names of the time-outs that wait. The times at which those
are due are with their messages, not here. An ended instance has no state. Showing changes nothing.

With --json, one object with the state and the meta as JSON.`

func (a *app) sagasShowCommand() *cobra.Command {
	var s sagaOf
	cmd := &cobra.Command{
		Use:     "show SAGA KEY",
		Short:   "Show the state of an instance",
		Long:    sagasShowHelp,
		Example: `  holdfast sagas show orders 4711 --endpoint billing --database postgres://host/billing`,
		Args:    cobra.ExactArgs(2),
	}
	s.flags(a, cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.onInstance(cmd.Context(), &s, args, func(_ transport.StateInspector, r transport.Record) error {
			i, meta, damaged := instanceOf(r)
			shown := struct {
				shownInstance
				Waiting []string        `json:"waiting,omitempty"` // names of time-outs
				State   json.RawMessage `json:"state,omitempty"`
				Meta    json.RawMessage `json:"meta,omitempty"`
			}{i, slices.Sorted(maps.Keys(meta.Timeouts)), r.State, r.Meta}
			if *asJSON {
				return json.NewEncoder(a.out).Encode(shown)
			}
			fmt.Fprintf(a.out, "%s  id %s  %s\n", keyText(i.Key), i.ID, i.Status)
			fmt.Fprintf(a.out, "began %s  changed %s  changes %d  version of the state %d\n",
				when(i.Started), when(i.Changed), i.Changes, i.Version)
			if damaged != nil {
				a.section("damaged", "what is stored beside the state cannot be read: "+damaged.Error())
			}
			a.section("time-outs that wait", strings.Join(shown.Waiting, "\n"))
			a.section(fmt.Sprintf("state, %d bytes", len(r.State)), string(r.State))
			a.section("meta", string(r.Meta))
			return nil
		})
	}
	return cmd
}
