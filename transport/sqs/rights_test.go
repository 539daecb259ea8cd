package sqs

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/holdfast-go/holdfast/transport"
)

// denying is SQS for credentials without rights to the queues of which denied is true.
type denying struct {
	*fake
	denied func(queue string) bool
}

//nolint:revive,staticcheck // the name is of the SDK
func (d denying) GetQueueUrl(ctx context.Context, in *sqs.GetQueueUrlInput, options ...func(*sqs.Options)) (*sqs.GetQueueUrlOutput, error) {
	if d.denied(*in.QueueName) {
		return nil, answer(403, "AccessDenied")
	}
	return d.fake.GetQueueUrl(ctx, in, options...)
}

func TestAToolNeedsNoRightToAQueueThatDoesNotExist(t *testing.T) {
	by := clients{queues: denying{&fake{}, func(string) bool { return true }}, close: func() {}}
	c, err := openConn(t.Context(), (&Transport{}).withDefaults(), by, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := openConn(t.Context(), (&Transport{}).withDefaults(), by, transport.Env{Endpoint: "in"}); err == nil {
		t.Error("an endpoint opens without the right to its queue")
	}
}

func TestAQueueIsInspectedWithoutTheRightToItsDelays(t *testing.T) {
	f := &fake{attributes: map[string]string{
		"ApproximateNumberOfMessages": "3", "ApproximateNumberOfMessagesNotVisible": "0", "ApproximateNumberOfMessagesDelayed": "1",
	}}
	by := clients{queues: denying{f, func(queue string) bool { return strings.HasSuffix(queue, delaySuffix) }}, close: func() {}}
	c, err := openConn(t.Context(), (&Transport{}).withDefaults(), by, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stats, err := c.Inspect(t.Context(), "error")
	if err != nil || stats[0].Ready != 3 || stats[0].Delayed != 1 {
		t.Errorf("%+v, %v", stats, err)
	}
}

func TestTheUsersOwnRetryerIsUsed(t *testing.T) {
	for own, want := range map[bool]int{false: tries, true: 7} {
		cfg := &aws.Config{Region: "eu-central-1"}
		if own {
			cfg.Retryer = func() aws.Retryer { return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts = 7 }) }
		}
		by, err := (&Transport{Config: cfg}).dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := by.queues.(*sqs.Client).Options().Retryer.MaxAttempts(); got != want {
			t.Errorf("own retryer %v: %d tries, want %d", own, got, want)
		}
		by.close()
	}
}

// SQS counts its twelve hours from when it began to hide the message, which is before its answer
// came.
func TestTheLastRenewalIsWithinTwelveHoursOfTheDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openFake(t, &fake{}, func(cfg *Transport) { cfg.Lease = maxHold })
		in, err := c.inFlight(t.Context(), "in")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		time.Sleep(900 * time.Millisecond)
		m := came("m", 1)
		d, _ := in.take(&m, &poll{asking: asking{lease: c.cfg.Lease}, began: began, came: time.Now()})
		time.Sleep(time.Hour)
		seconds, keep := d.renewal(time.Now(), maxHold)
		if end := time.Since(began) + time.Duration(seconds)*time.Second; !keep || end > maxHold {
			t.Errorf("the lease ends %v after the delivery, SQS allows %v", end, maxHold)
		}
	})
}
