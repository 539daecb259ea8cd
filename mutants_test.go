package holdfast_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A fault of scripts/mutants.txt whose expression changes nothing tests nothing. Such faults are left
// behind when code moves.
func TestFaultsOfMutantsApply(t *testing.T) {
	list, err := os.ReadFile("scripts/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, " | ")
		if len(fields) != 4 {
			t.Errorf("not four fields: %s", line)
			continue
		}
		before, err := os.ReadFile(fields[1])
		if err != nil {
			t.Errorf("%s: %v", fields[0], err)
			continue
		}
		after, err := exec.Command("sed", "-E", fields[2], fields[1]).Output()
		if err != nil {
			t.Errorf("%s: sed: %v", fields[0], err)
		} else if bytes.Equal(before, after) {
			t.Errorf("%s: the expression changes nothing in %s", fields[0], fields[1])
		}
	}
}
