package otel

import (
	"runtime/debug"
	"sync"
)

const module = "github.com/holdfast-go/holdfast"

// version returns the version of this module in the program, which spans and metrics carry as that of their scope. It is
// "(devel)" in a program that is built from a checkout of the module.
var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionIn(info)
})

func versionIn(info *debug.BuildInfo) string {
	if info.Main.Path == module && info.Main.Version != "" {
		return info.Main.Version
	}
	for _, m := range info.Deps {
		if m.Path != module {
			continue
		}
		if m.Replace != nil && m.Replace.Version != "" {
			return m.Replace.Version
		}
		if m.Replace == nil {
			return m.Version
		}
	}
	return "(devel)"
}
