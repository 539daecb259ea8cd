package otel

import (
	"runtime/debug"
	"sync"
)

const module = "github.com/holdfast-go/holdfast"

// version returns the version of this module in the program, which spans and metrics carry as that
// of their scope. It is "(devel)" in a program that is built from a checkout of the module.
var version = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return versionIn(info)
	}
	return "unknown"
})

func versionIn(info *debug.BuildInfo) string {
	if info.Main.Path == module && info.Main.Version != "" {
		return info.Main.Version
	}
	for _, m := range info.Deps {
		switch {
		case m.Path != module:
		case m.Replace == nil:
			return m.Version
		case m.Replace.Version != "":
			return m.Replace.Version
		}
	}
	return "(devel)"
}
