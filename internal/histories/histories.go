// Package histories runs tests on random histories. Each history has a synctest bubble and a
// random generator of its own. A history that fails prints the command that repeats the history.
package histories

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

// Environment variables of [Run].
const (
	// seedVariable holds the seed of the history that runs alone.
	seedVariable = "HOLDFAST_SEED"
	// soakVariable is set in make soak.
	soakVariable = "HOLDFAST_SOAK"
)

// Count is the number of histories of a test. With the race detector a quarter of them runs in
// make test and with -short.
type Count struct {
	Short int // with -short
	Test  int // in make test
	Soak  int // in make soak
}

// Run runs histories with seeds that follow each other, and stops at the first failure. The
// environment variable HOLDFAST_SEED runs the one history with that seed.
func Run(t *testing.T, count Count, history func(t *testing.T, rnd *rand.Rand)) {
	t.Helper()
	n, first := count.now(), rand.Uint64()>>1
	if text := os.Getenv(seedVariable); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
		n, first = 1, seed
	}
	pkg := packageOf(history)
	for seed := first; seed < first+uint64(n) && !t.Failed(); seed++ {
		run(t, pkg, seed, history)
	}
}

// IsRepeated reports whether HOLDFAST_SEED names one history. Then a test can log more.
func IsRepeated() bool { return os.Getenv(seedVariable) != "" }

func (c Count) now() int {
	switch {
	case os.Getenv(soakVariable) != "":
		return c.Soak
	case testing.Short():
		return max(1, c.Short/share)
	default:
		return max(1, c.Test/share)
	}
}

func run(t *testing.T, pkg string, seed uint64, history func(*testing.T, *rand.Rand)) {
	t.Helper()
	command := fmt.Sprintf("%s=%d go test -run='^%s$' %s repeats the history",
		seedVariable, seed, t.Name(), pkg)
	defer afterPanic(command) // of synctest, if all goroutines are blocked
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { // a Cleanup runs behind t.FailNow and behind the cleanups of the history
			if t.Failed() {
				t.Log(command)
			}
		})
		defer afterPanic(command)
		history(t, rand.New(rand.NewPCG(seed, 0))) //nolint:gosec // the history is to be repeated
	})
}

// afterPanic prints the command if the function that defers afterPanic panics. A panic ends the
// process, and nothing prints the log of the history.
func afterPanic(command string) {
	if v := recover(); v != nil {
		fmt.Fprintln(os.Stderr, command)
		panic(v) //nolint:forbidigo // the panic goes on
	}
}

// packageOf returns the path of the package that declares a function.
func packageOf(f any) string {
	name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
	i := strings.LastIndexByte(name, '/') + 1
	base, _, _ := strings.Cut(name[i:], ".")
	return name[:i] + strings.TrimSuffix(base, "_test")
}
