package brokertest

import (
	"os"
	"testing"
)

// Node is a broker that a test may stop, kill and restart, unlike the broker that tests share. A
// test binary has one of each kind: it starts with the first test that needs it, belongs to one
// test at a time or to tests that only use it, and ends with the process, even when that is killed.
// Only the test's own goroutine calls its methods.
type Node struct {
	URL string // of the test's own part of the broker; the same after a restart

	t      testing.TB
	server *server
}

// Stop sends the broker's process a signal and waits for its end: [os.Kill] is a crash; the
// broker decides about [os.Interrupt] and others.
func (n *Node) Stop(how os.Signal) {
	n.t.Helper()
	must(n.t, n.server.stop(how))
}

// Start returns when the broker answers.
func (n *Node) Start() {
	n.t.Helper()
	must(n.t, n.server.start())
}

// Restart stops the broker and starts it again.
func (n *Node) Restart(how os.Signal) {
	n.t.Helper()
	n.Stop(how)
	n.Start()
}

// own gives a test the exclusive use of a server.
func own(t testing.TB, start func() (*server, error)) *Node {
	t.Helper()
	notShort(t, "a broker of its own")
	s, err := start()
	must(t, err)
	s.inUse.Lock()
	t.Cleanup(s.inUse.Unlock)
	return use(t, s)
}

// share gives a test the use of a server beside others. None of them stops the server or changes
// what others see.
func share(t testing.TB, start func() (*server, error)) *Node {
	t.Helper()
	notShort(t, "a broker of the test binary's own")
	s, err := start()
	must(t, err)
	s.inUse.RLock()
	t.Cleanup(s.inUse.RUnlock)
	s.starting.Lock()
	defer s.starting.Unlock()
	return use(t, s)
}

// use starts a server that does not run or does not answer.
func use(t testing.TB, s *server) *Node {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", s.name, s.log())
		}
	})
	n := &Node{t: t, server: s}
	if s.running() && s.answers() != nil {
		n.Stop(os.Kill) // the state that the previous test has left
	}
	n.Start()
	return n
}
