package transporttest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the list of rules into docs/writing-a-transport.md")

const (
	guide   = "../../docs/writing-a-transport.md"
	matches = "../../docs/conformance.md"

	listBegins = "<!-- the rules, as \"go test ./transport/transporttest -update\" writes them -->\n"
	listEnds   = "<!-- end of the rules -->\n"
)

func TestTheGuideListsTheRules(t *testing.T) {
	text := read(t, guide)
	before, rest, began := strings.Cut(text, listBegins)
	is, after, ends := strings.Cut(rest, listEnds)
	if !began || !ends {
		t.Fatal("the guide has no place for the rules")
	}
	want := list()
	if *update {
		if err := os.WriteFile(guide, []byte(before+listBegins+want+listEnds+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, is); diff != "" {
		t.Errorf("run \"go test ./transport/transporttest -update\" (-want +got):\n%s", diff)
	}
}

// list is the rules as the guide has them.
func list() string {
	var b strings.Builder
	theme := ""
	for _, r := range Rules() {
		if r.Theme != theme {
			theme = r.Theme
			fmt.Fprintf(&b, "\n### %s\n\n| rule | requirement | needs |\n|---|---|---|\n", theme)
		}
		needs := strings.Join(r.Needs, ", ")
		if needs == "" {
			needs = "–"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.Name, r.Rule, needs)
	}
	return b.String() + "\n"
}

// The guide shows the code of inmemory as it is.
func TestTheGuidesExcerptsAreReal(t *testing.T) {
	excerpts := regexp.MustCompile("(?s)```go\n// transport/inmemory/(\\w+\\.go)\n(.*?)```").FindAllStringSubmatch(read(t, guide), -1)
	if len(excerpts) < 5 {
		t.Fatalf("%d excerpts, want the guide to be worked through on inmemory", len(excerpts))
	}
	for _, e := range excerpts {
		if code := read(t, "../inmemory/"+e[1]); !strings.Contains(code, e[2]) {
			t.Errorf("%s does not have this any more:\n%s", e[1], e[2])
		}
	}
}

// Every rule and every test that the table of conformance names exists, and it names every rule.
func TestTheTableOfConformanceNamesWhatExists(t *testing.T) {
	var rules []string
	for _, r := range table {
		rules = append(rules, r.name)
	}
	tests := tests(t, "..", "../../endpoint", "../../internal/pump", "../../recoverability", "../../header", "../../saga")
	text := read(t, matches)
	names := regexp.MustCompile("`([a-z]+(?:-[a-z]+)+|Test[A-Z]\\w+)`").FindAllStringSubmatch(text, -1)
	if len(names) < 50 {
		t.Fatalf("the table names %d rules and tests", len(names))
	}
	for _, n := range names {
		if !slices.Contains(rules, n[1]) && !slices.Contains(tests, n[1]) {
			t.Errorf("there is no %s", n[1])
		}
	}
}

// The table has a line for each class of NServiceBus's suite, and their cases add up.
func TestTheTableOfConformanceIsComplete(t *testing.T) {
	classes, cases := 0, 0
	for _, line := range regexp.MustCompile(`(?m)^\| When_\w+ \| (\d) \|.*$`).FindAllStringSubmatch(read(t, matches), -1) {
		var n int
		if _, err := fmt.Sscan(line[1], &n); err != nil {
			t.Fatal(err)
		}
		classes++
		cases += n
	}
	if classes != 27 || cases != 69 {
		t.Errorf("%d classes with %d cases, want 27 with 69", classes, cases)
	}
}

// tests are the names of the tests under some folders.
func tests(t *testing.T, folders ...string) (names []string) {
	t.Helper()
	for _, folder := range folders {
		for _, pattern := range []string{"/*_test.go", "/*/*_test.go"} {
			files, err := filepath.Glob(folder + pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				for _, f := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, file), -1) {
					names = append(names, f[1])
				}
			}
		}
	}
	return names
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
