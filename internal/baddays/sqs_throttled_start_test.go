package baddays_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// sqsThrottledStart starts an endpoint while AWS throttles the search for its queues, with a
// message that SQS has given up.
func sqsThrottledStart(t *testing.T) outcome {
	a := newAccount(t)
	a.install()
	a.send("sales.dead-letters", 1)
	a.send("sales", 2)
	a.front.Refuse(func(r brokertest.SQSRequest) string {
		if r.Action == "sqs:GetQueueUrl" && (r.Name == a.prefix+"sales-dead-letters" || r.Name == a.prefix+"sales-delay.fifo") {
			return "RequestThrottled"
		}
		return ""
	})
	e := a.run(func(*endpoint.Config) {}, func(context.Context, *endpoint.Session, sqsJob) error { return nil })
	a.until("an ordinary message is handled", func() bool { return a.attempts(2) == 1 })
	a.until("health says what is not received from", func() bool {
		h := e.Health()
		return !h.Ready && strings.Contains(strings.Join(h.Reasons, "\n"), "the transport's own queues")
	})
	<-time.After(time.Duration(size(1, 30)) * time.Second) // the throttle
	a.front.Refuse(nil)
	took := a.until("the endpoint receives from all queues", func() bool { return e.Health().Ready && len(e.Health().Queues) == 3 })
	if found := a.failed(1); len(found) != 1 {
		t.Errorf("the error queue has %d messages", len(found))
	}
	return outcome{message: "in the error queue once the throttling ended", neighbours: "handled during the throttling", normal: took}
}
