package holdfast_test

import (
	"os"
	"strings"
	"testing"
)

// The README promises a complete program in fewer than 50 lines: the one that is
// compiled and run as an example.
func TestTheReadmeShowsTheQuickstartAsItIs(t *testing.T) {
	program, err := os.ReadFile("examples/quickstart/main.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```go\n"+string(program)+"```\n") {
		t.Error("README.md shows another program than examples/quickstart/main.go")
	}
	if lines := strings.Count(string(program), "\n"); lines >= 50 {
		t.Errorf("the program has %d lines, want fewer than 50", lines)
	}
}
