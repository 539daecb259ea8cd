// Package brokertest gives tests real brokers, each test its own part of one, and
// connections that break on demand. Only tests import it.
//
// A broker that is missing fails the test and says how to start one. Under -short,
// and only then, tests that need a broker are skipped.
package brokertest

import (
	"crypto/rand"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// unique returns a name that no other test uses, of lower-case letters, digits and hyphens,
// with the time of its creation.
func unique() string {
	return fmt.Sprintf("holdfast-%d-%s", time.Now().Unix(), strings.ToLower(rand.Text()[:10]))
}

// uniquePattern matches a name that unique returned.
const uniquePattern = "^holdfast-([0-9]{10})-[a-z2-7]{10}$"

// leftAfter is the age from which no running test needs a thing: the longest run takes six
// hours. A younger thing may be of a concurrent run.
const leftAfter = 12 * time.Hour

// leftBehind reports whether name was made for a test that was killed.
func leftBehind(name string) bool {
	parts := regexp.MustCompile(uniquePattern).FindStringSubmatch(name)
	if parts == nil {
		return false
	}
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	return err == nil && time.Since(time.Unix(seconds, 0)) > leftAfter
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// notShort skips the test under -short.
func notShort(t testing.TB, broker string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("needs %s, and -short is for machines without", broker)
	}
}

// need skips the test under -short, and fails it when no broker listens at address.
func need(t testing.TB, broker, address, variable string) {
	t.Helper()
	notShort(t, broker)
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatalf("no %s at %s: start one with \"make brokers-up\", or name another in %s: %v", broker, address, variable, err)
	}
	_ = c.Close()
}

// Name returns a unique name that begins with name, for a queue or, dots included, for a message
// type. Where tests share a broker the names keep them apart, and queue and exchange are deleted by
// name.
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
