package fault

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFramesOfAGoStack(t *testing.T) {
	for name, test := range map[string]struct {
		stack string
		want  []Frame
	}{
		"with arguments": {
			"goroutine 1 [running]:\nmain.(*Shop).Charge(0xc000, {0x1, 0x2})\n\t/src/shop.go:35 +0x5e\nmain.main()\n\t/src/main.go:9 +0x1d\n",
			[]Frame{{"main.(*Shop).Charge", "/src/shop.go", 35}, {"main.main", "/src/main.go", 9}},
		},
		"inlined, generic": {
			"example.com/a.Do[...](...)\n\t/src/a b/a.go:7\n", []Frame{{"example.com/a.Do[...]", "/src/a b/a.go", 7}},
		},
		"of Windows":       {"main.f()\r\n\tC:/src/a.go:7 +0x1\r\n", []Frame{{"main.f", "C:/src/a.go", 7}}},
		"without brackets": {"main.f\n\t/src/a.go:7\n", []Frame{{"main.f", "/src/a.go", 7}}},
		"frames left out":  {"...12 frames elided...\nmain.f()\n\t/a.go:1\n", []Frame{{"main.f", "/a.go", 1}}},
		"a panic within":   {"panic({0x1, 0x2})\n\t/go/panic.go:8\nmain.f()\n\t/a.go:1\n", []Frame{{"main.f", "/a.go", 1}}},
		"its start":        {"created by main.main in goroutine 1\n\t/src/main.go:9 +0x1d\n", nil},
		"no line number":   {"main.f()\n\t/a.go:x\nmain.g()\n\t/a.go\n", []Frame{{"main.f", "/a.go:x", 0}, {"main.g", "/a.go", 0}}},
		"places only":      {"\t/a.go:1\n\t/b.go:2\n", nil},
		"no stack":         {"at x.y()\nno such card", nil},
		"blanks":           {"main.f g()\n\t/a.go:1\n", nil},
		"empty":            {"", nil},
	} {
		if diff := cmp.Diff(test.want, frames(test.stack)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTheSourceOfAFrameIsItsPackage(t *testing.T) {
	for function, want := range map[string]string{
		"example.com/acme/shop.(*Shop).Charge":             "example.com/acme/shop",
		"example.com/acme/shop.Do[example.com/b/c.D]":      "example.com/acme/shop",
		"gopkg.in/yaml%2ev3.Unmarshal":                     "gopkg.in/yaml%2ev3",
		"encoding/json.Unmarshal":                          "encoding/json",
		"errors.New":                                       "errors",
		"github.com/holdfast-go/holdfast/pipeline.Receive": "github.com/holdfast-go/holdfast/pipeline",
	} {
		if got := (Frame{Func: function}).source(); got != want {
			t.Errorf("%s: %q, want %q", function, got, want)
		}
	}
}
