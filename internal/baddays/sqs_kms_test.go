package baddays_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
)

// sqsKMS has KMS throttle what handlers send, and later deny the key.
func sqsKMS(t *testing.T) outcome {
	a := newAccount(t)
	a.install()
	n := size(20, 200)
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	refuse := func(code string) func(brokertest.SQSRequest) string {
		return func(r brokertest.SQSRequest) string {
			if r.Action == "sqs:SendMessage" && r.Name == a.prefix+"billing" {
				return code
			}
			return ""
		}
	}
	sent := func() (requests int) {
		for _, r := range a.front.Seen() {
			if r.Refused != "" {
				requests++
			}
		}
		return requests
	}
	a.front.Refuse(refuse("KMS.ThrottlingException"))
	a.send("sales", numbers...)
	a.run(func(cfg *endpoint.Config) {
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
	}, func(ctx context.Context, s *endpoint.Session, m sqsJob) error {
		return s.Send(ctx, m, endpoint.To("billing"))
	})
	a.until("AWS has throttled", func() bool { return sent() > 0 })
	began := time.Now()
	<-time.After(time.Duration(size(2, 20)) * time.Second) // the throttle
	throttled := sent()
	if most := 2 + int(time.Since(began)/time.Second); throttled > most {
		t.Errorf("%d requests were throttled in %v, want one a second", throttled, time.Since(began))
	}
	a.front.Refuse(nil)
	took := a.until("all messages are sent", func() bool { return a.depth("billing") >= n && a.depth("sales") == 0 })
	if failed := a.depth("error"); failed != 0 {
		t.Errorf("%d messages are in the error queue after the throttle", failed)
	}
	a.front.Refuse(refuse("KMS.AccessDeniedException"))
	a.send("sales", n)
	if found := a.failed(1); len(found) != 1 {
		t.Errorf("the denied message: %v", found)
	}
	return outcome{
		message:    "sent after the throttle; in the error queue after a denial",
		neighbours: fmt.Sprintf("none in the error queue, %d requests while throttled", throttled), normal: took,
	}
}
