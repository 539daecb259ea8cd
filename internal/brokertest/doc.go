// Package brokertest gives tests real brokers, each test its own corner of one, and
// connections that break on demand. It is imported by tests only.
//
// A broker that is missing fails the test and says how to start one. Under -short,
// and only then, tests that need a broker are skipped.
package brokertest

import (
	"crypto/rand"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// unique is a name that no other test uses: lower-case letters, digits and hyphens.
func unique() string {
	return "holdfast-" + strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(rand.Text()[:10])
}

// need skips under -short, and fails the test when nobody listens at address.
func need(t testing.TB, broker, address, variable string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("needs %s, and -short is for machines without", broker)
	}
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatalf("no %s at %s: start one with \"make brokers-up\", or name another in %s: %v", broker, address, variable, err)
	}
	_ = c.Close()
}

// Name makes a name unique, for a queue or, dots included, for a message type. Where
// a test has no corner of its own in the broker, that keeps it apart, and queue and
// exchange are deleted by name.
func Name(t testing.TB, name string) string {
	t.Helper()
	full := unique() + "-" + name
	t.Cleanup(func() {
		if server := shared.Load(); server != nil {
			deleteNamed(t, *server, full)
		}
	})
	return full
}
