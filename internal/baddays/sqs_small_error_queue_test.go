package baddays_test

import (
	"context"
	"errors"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
)

// sqsSmallErrorQueue fails messages of up to 800 KB where the error queue takes 256 KiB.
func sqsSmallErrorQueue(t *testing.T) outcome {
	a := newAccount(t)
	a.install()
	_, err := a.client.SetQueueAttributes(t.Context(), &awssqs.SetQueueAttributesInput{
		QueueUrl: a.url("error"), Attributes: map[string]string{"MaximumMessageSize": "262144"},
	})
	if err != nil {
		t.Fatal(err)
	}
	bodies := []string{a.put("sales", 0, 100_000), a.put("sales", 1, 300_000), a.put("sales", 2, 800_000)}
	began := time.Now()
	a.run(func(cfg *endpoint.Config) {
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
	}, func(context.Context, *endpoint.Session, sqsJob) error { return errors.New("it fails each time") })
	found := a.failed(len(bodies))
	took := time.Since(began)
	for n, body := range bodies {
		if _, ok := found[body]; !ok || a.attempts(n) != 2 {
			t.Errorf("a message of %d bytes was handled %d times, and is in the error queue: %v", len(body), a.attempts(n), ok)
		}
	}
	return outcome{message: "in the error queue, compressed where it is over 256 KiB", neighbours: "in the error queue as they were", normal: took}
}
