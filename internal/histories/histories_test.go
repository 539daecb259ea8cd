package histories

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The command that a failed history prints repeats that history, and no other.
func TestAFailedHistoryIsRepeated(t *testing.T) {
	if os.Getenv("HISTORIES_FAIL") != "" {
		Run(t, Count{Short: 200, Test: 200, Soak: 200}, func(t *testing.T, rnd *rand.Rand) {
			if n := rnd.IntN(10); n == 0 {
				t.Fatalf("drawn: %d %d", n, rnd.Uint64())
			}
		})
		return
	}
	fails := func(seed string) (drawn, command string) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "HISTORIES_FAIL=1", seed)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Fatalf("no history fails: %s", out)
		}
		for line := range strings.Lines(string(out)) {
			if _, text, ok := strings.Cut(line, "drawn: "); ok {
				drawn += text
			}
			if _, text, ok := strings.Cut(line, "HOLDFAST_SEED="); ok {
				command += text
			}
		}
		return drawn, command
	}
	drawn, command := fails("HOLDFAST_SEED=")
	seed, rest, _ := strings.Cut(command, " ")
	again, _ := fails("HOLDFAST_SEED=" + seed)
	if drawn == "" || strings.Count(drawn, "\n") != 1 || again != drawn {
		t.Errorf("drawn %q, then %q", drawn, again)
	}
	want := "go test -run='^TestAFailedHistoryIsRepeated$' github.com/holdfast-go/holdfast/internal/histories repeats the history\n"
	if rest != want {
		t.Errorf("the command is %q", rest)
	}
}

// The command is printed also if the goroutines of a history are blocked, and if a history panics.
func TestAHistoryThatPanicsIsRepeated(t *testing.T) {
	ends := map[string]func(){
		"blocked": func() { select {} },
		"leaving": func() { go func() { select {} }() },
		"panic":   func() { panic("no") },
	}
	if end := ends[os.Getenv("HISTORIES_END")]; end != nil {
		Run(t, Count{Short: 4, Test: 4, Soak: 4}, func(*testing.T, *rand.Rand) { end() })
		return
	}
	for name := range ends {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "HISTORIES_END="+name, "HOLDFAST_SEED=")
		if out, err := cmd.CombinedOutput(); err == nil || strings.Count(string(out), "HOLDFAST_SEED=") != 1 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// A seed that is no number fails the test.
func TestASeedIsANumber(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAFailedHistoryIsRepeated$")
	cmd.Env = append(os.Environ(), "HISTORIES_FAIL=1", "HOLDFAST_SEED=x")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "HOLDFAST_SEED") {
		t.Errorf("%v: %s", err, out)
	}
}

// The count is that of the run.
func TestCountOfARun(t *testing.T) {
	t.Setenv(seedVariable, "")
	t.Setenv(soakVariable, "")
	n := 0
	count := Count{Short: 8, Test: 12, Soak: 4}
	Run(t, count, func(*testing.T, *rand.Rand) { n++ })
	if want := map[bool]int{true: 8, false: 12}[testing.Short()] / share; n != want || IsRepeated() {
		t.Errorf("%d histories", n)
	}
	t.Setenv(soakVariable, "1")
	n = 0
	Run(t, count, func(*testing.T, *rand.Rand) { n++ })
	if n != 4 {
		t.Errorf("%d histories of a soak", n)
	}
}

// The command names the package of a history, whatever the path of the package is.
func TestThePackageOfAHistory(t *testing.T) {
	for want, f := range map[string]any{
		"strings": strings.Clone,
		"os/exec": exec.Command,
		"github.com/holdfast-go/holdfast/internal/histories": Run,
	} {
		if got := packageOf(f); got != want {
			t.Errorf("packageOf: %q, want %q", got, want)
		}
	}
}
