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

// SQS returns the URL of an endpoint of Amazon SQS and SNS: that of HOLDFAST_TEST_SQS, or of a
// stand-in that starts with the first test that needs it and ends with the process, even when that
// is killed. The stand-in accepts any credentials and region. A process that a test starts uses the
// same one if HOLDFAST_TEST_SQS is set to its URL. Tests share it: queues and topics need a [Name].
func SQS(t testing.TB) string {
	t.Helper()
	if endpoint := os.Getenv(sqsVariable); endpoint != "" {
		u, err := url.Parse(endpoint)
		if err != nil || u.Host == "" {
			t.Fatalf("%s is not a URL", sqsVariable)
		}
		need(t, "Amazon SQS", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), u.Scheme)), sqsVariable)
		return endpoint
	}
	notShort(t, "a stand-in for Amazon SQS")
	s, err := sharedSQS()
	must(t, err)
	return "http://" + s.url("")
}

var sharedSQS = sync.OnceValues(func() (*server, error) {
	s, err := newScript("sqs", "sqs.mjs")
	if err != nil {
		return nil, err
	}
	return s, s.start()
})

// OwnSQS returns a stand-in for Amazon SQS and SNS of the test binary's own. It keeps queues,
// topics and messages over restarts, those of earlier tests included.
func OwnSQS(t testing.TB) *Node {
	t.Helper()
	n := own(t, ownSQS)
	n.URL = "http://" + n.server.url("")
	return n
}

var ownSQS = sync.OnceValues(func() (*server, error) { return newScript("sqs", "sqs.mjs", "keep") })
