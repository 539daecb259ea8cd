package baddays_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
)

// postgresDropped drops the table of one of two subscribers.
func postgresDropped(t *testing.T) outcome {
	r := startRelays(t, endpoint.ReceiveOnly, "sink", "dropped")
	for _, q := range []string{"sink", "dropped"} {
		r.exec(`INSERT INTO holdfast_subscriptions (type, queue) VALUES ('BadDays.Happened', $1)`, q)
	}
	stop := r.feed(100, toSubscribers)
	r.wait("both subscribers have events", 30*time.Second, func() bool { return r.rows("dropped") > 50 })
	r.exec(`DROP TABLE dropped`)
	began := r.rows("sink")
	r.wait("the other subscriber has more", 30*time.Second, func() bool { return r.rows("sink") > began+size(200, 20_000) })
	sent := stop()
	r.wait("all messages are handled", time.Minute, func() bool { return r.rows("work") == 0 })
	if n, failed := r.rows("sink"), r.rows("error"); n != sent[toSubscribers] || failed != 0 {
		t.Errorf("%d of %d events arrived at the other subscriber, %d messages in the error queue", n, sent[toSubscribers], failed)
	}
	return outcome{message: "its events are left out, with a warning", neighbours: fmt.Sprintf("the other subscriber has all %d events", sent[toSubscribers])}
}
