package main

import (
	"errors"
	"fmt"
	"io"
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
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and the Go release that built this program",
		Example: "  holdfast version --json",
		Args:    cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		info, ok := debug.ReadBuildInfo()
		if !ok {
			return errors.New("version: this program was built without module information")
		}
		v := versionOf(info)
		return a.show(*asJSON, v, func(w io.Writer) {
			fmt.Fprintf(w, "holdfast %s\n", v.Version)
			if v.Commit != "" {
				changed := ""
				if v.Modified {
					changed = " with changes"
				}
				fmt.Fprintf(w, "commit   %s%s (%s)\n", v.Commit, changed, v.Time)
			}
			fmt.Fprintf(w, "go       %s\n", v.Go)
		})
	}
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
