package brokertest

import (
	"flag"
	"testing"
	"time"
)

// Longer calls try with twice the time until try succeeds. A lease or a time-out that a test must
// outlast in real time is short on a fast machine, and too short on a busy machine. A fault that
// does not depend on time fails with each.
func Longer(t testing.TB, first time.Duration, try func(d time.Duration) error) {
	t.Helper()
	for d := first; ; d *= 2 {
		err := try(d)
		if err == nil {
			return
		}
		if d > time.Minute {
			t.Fatalf("with %v: %v", d, err)
		}
		t.Logf("with %v: %v; it is tried with twice the time", d, err)
	}
}

// Parallel lets n tests run at once, unless -parallel is given. TestMain calls it in packages whose
// tests wait: a test that waits needs no core.
func Parallel(n string) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", n); err != nil {
		panic(err) //nolint:forbidigo // a programmer's mistake before the tests
	}
}
