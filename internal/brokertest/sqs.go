package brokertest

import (
	"cmp"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
)

const sqsVariable = "HOLDFAST_TEST_SQS"

// SQS is the URL of an endpoint of Amazon SQS and SNS: the one that HOLDFAST_TEST_SQS names, or
// a stand-in that is started for the first test that asks and ends with the process, even when that
// is killed. Any credentials and region are good for the stand-in. A process that a test starts
// finds the same one when it is told its URL in HOLDFAST_TEST_SQS. Tests share it: queues and topics
// are to be called by [Name].
func SQS(t testing.TB) string {
	t.Helper()
	if endpoint := os.Getenv(sqsVariable); endpoint != "" {
		u, err := url.Parse(endpoint)
		if err != nil || u.Host == "" {
			t.Fatalf("%s is not a URL", sqsVariable)
		}
		port := cmp.Or(u.Port(), u.Scheme)
		need(t, "Amazon SQS", net.JoinHostPort(u.Hostname(), port), sqsVariable)
		return endpoint
	}
	if testing.Short() {
		t.Skip("needs a stand-in for Amazon SQS, and -short is for machines without")
	}
	s, err := sharedSQS()
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + s.url("")
}

var sharedSQS = sync.OnceValues(func() (*server, error) {
	s, err := newScript("sqs", "sqs.mjs")
	if err != nil {
		return nil, err
	}
	return s, s.start()
})

// OwnSQS is a stand-in for Amazon SQS and SNS of the test binary's own. It keeps queues, topics
// and messages over restarts; those of the tests before are still there.
func OwnSQS(t testing.TB) *Node {
	t.Helper()
	n := own(t, ownSQS)
	n.URL = "http://" + n.server.url("")
	return n
}

var ownSQS = sync.OnceValues(func() (*server, error) { return newScript("sqs", "sqs.mjs", "keep") })
