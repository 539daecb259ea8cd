package main

import (
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// buildVersion describes the build.
type buildVersion struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"` // of the commit
	Modified bool   `json:"modified"`       // the source had changes not committed
	Go       string `json:"go"`
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and the Go release that built this program",
		Example: "  holdfast version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				return fmt.Errorf("version: this program was built without module information")
			}
			return a.printVersion(versionOf(info), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func versionOf(info *debug.BuildInfo) buildVersion {
	v := buildVersion{Module: info.Main.Path, Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (a *app) printVersion(v buildVersion, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(a.out).Encode(v)
	}
	fmt.Fprintf(a.out, "holdfast %s\n", v.Version)
	if v.Commit != "" {
		changed := ""
		if v.Modified {
			changed = " with changes"
		}
		fmt.Fprintf(a.out, "commit   %s%s (%s)\n", v.Commit, changed, v.Time)
	}
	fmt.Fprintf(a.out, "go       %s\n", v.Go)
	return nil
}
