package baddays_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
)

// postgresMissing has some messages sent to a queue that there is not.
func postgresMissing(t *testing.T) outcome {
	r := startRelays(t, endpoint.ReceiveOnly, "sink")
	stop := r.feed(5, "missing")
	rate := r.rate(time.Duration(size(1, 20)) * time.Second)
	sent := stop()
	r.wait("all messages are handled", time.Minute, func() bool { return r.rows("work") == 0 })
	if n, failed := r.rows("sink"), r.rows("error"); n != sent["sink"] || failed != sent["missing"] {
		t.Errorf("%d of %d messages in sink, %d of %d in the error queue", n, sent["sink"], failed, sent["missing"])
	}
	if n := r.retried.Load(); n != 0 {
		t.Errorf("%d runs were not the first", n)
	}
	return outcome{
		message: fmt.Sprintf("%d in the error queue", sent["missing"]), neighbours: fmt.Sprintf("%.0f messages/s, each once", rate),
	}
}
