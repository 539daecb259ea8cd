package resilience_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

// file is a catalog of the program's own.
type file map[string]resilience.Policy

func (f file) Policy(name string) (p resilience.Policy, ok bool) {
	p, ok = f[name]
	return p, ok
}

// A Runner takes any catalog, and validates the policies of one that NewCatalog has not made.
func TestARunnerTakesACatalogOfTheProgram(t *testing.T) {
	r := resilience.NewRunner(file{
		"quick": {Name: "quick", Retry: resilience.Retry{Max: 2, Delay: resilience.None}},
		"bad":   {Name: "bad", Timeout: -time.Second},
	})
	for name, test := range map[string]struct {
		attempts int
		want     string
	}{
		"quick": {3, errAway.Error()}, "bad": {0, "Timeout is negative"}, "other": {0, `there is no policy "other" in the catalog, a resilience_test.file`},
	} {
		n := 0
		err := r.Run(t.Context(), name, func(context.Context) error {
			n++
			return errAway
		})
		if n != test.attempts || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %d attempts and %v, want %d and %q", name, n, err, test.attempts, test.want)
		}
	}
}
