package otel

import (
	"runtime/debug"
	"testing"
)

func TestTheScopeHasTheVersionOfTheModule(t *testing.T) {
	ours := func(version string, replace *debug.Module) *debug.Module {
		return &debug.Module{Path: module, Version: version, Replace: replace}
	}
	other := &debug.Module{Path: "example.com/other", Version: "v9.0.0"}
	for name, test := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"a dependency":             {debug.BuildInfo{Deps: []*debug.Module{other, ours("v1.2.3", nil)}}, "v1.2.3"},
		"replaced by a fork":       {debug.BuildInfo{Deps: []*debug.Module{ours("v1.2.3", &debug.Module{Path: "example.com/fork", Version: "v1.2.4"})}}, "v1.2.4"},
		"replaced by a folder":     {debug.BuildInfo{Deps: []*debug.Module{ours("v1.2.3", &debug.Module{Path: "../holdfast"})}}, "(devel)"},
		"the program itself":       {debug.BuildInfo{Main: *ours("v1.3.0", nil)}, "v1.3.0"},
		"a checkout without a tag": {debug.BuildInfo{Main: *ours("", nil)}, "(devel)"},
	} {
		if got := versionIn(&test.info); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if version() == "" {
		t.Error("the version of this program is empty")
	}
}
