//go:build aws

package sqs_test

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqs"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

// The suite on AWS itself: make test-aws. It takes credentials that may create and delete queues
// and topics whose names begin with "holdfast-test-", and the region in HOLDFAST_TEST_AWS. Standard
// queues promise no order and tell only approximately how many messages they hold, so the rules
// about these are left out by the Makefile.

// onAWS is a transport whose queues and topics have a prefix of their own, and are deleted with the
// test.
func onAWS(t *testing.T) *sqs.Transport {
	t.Helper()
	region := os.Getenv("HOLDFAST_TEST_AWS")
	if region == "" {
		t.Fatal("HOLDFAST_TEST_AWS is not set: it names the region, and the credentials come from where the AWS tools look for them")
	}
	prefix := "holdfast-test-" + strings.ToLower(rand.Text()[:8]) + "-"
	t.Cleanup(func() { clearUp(t, region, prefix) })
	return &sqs.Transport{Region: region, QueuePrefix: prefix, TopicPrefix: prefix}
}

func clearUp(t *testing.T, region, prefix string) {
	ctx := context.Background()
	cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(region))
	if err != nil {
		t.Error(err)
		return
	}
	queues := awssqs.NewFromConfig(cfg)
	for pages := awssqs.NewListQueuesPaginator(queues, &awssqs.ListQueuesInput{QueueNamePrefix: &prefix}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		for _, url := range page.QueueUrls {
			if _, err := queues.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: &url}); err != nil {
				t.Error(err)
			}
		}
	}
	topics := sns.NewFromConfig(cfg)
	for pages := sns.NewListTopicsPaginator(topics, &sns.ListTopicsInput{}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		for _, topic := range page.Topics {
			if !strings.Contains(*topic.TopicArn, ":"+prefix) {
				continue
			}
			if _, err := topics.DeleteTopic(ctx, &sns.DeleteTopicInput{TopicArn: topic.TopicArn}); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestConformanceOnAWS(t *testing.T) {
	for name, raw := range map[string]bool{"envelope": false, "raw": true} {
		t.Run(name, func(t *testing.T) {
			broker := onAWS(t)
			broker.RawBody = raw
			short := *broker
			short.Lease = 4 * time.Second
			transporttest.Run(t, transporttest.Harness{
				Open:       func(testing.TB) transport.Transport { return kit{broker} },
				ShortLease: func(testing.TB) transport.Transport { return kit{&short} },
			})
		})
	}
}

// What a stand-in may be lenient about: the largest message there is, in bytes of several kinds,
// comes as it was.
func TestTheLargestMessagesAreTakenByAWS(t *testing.T) {
	for name, raw := range map[string]bool{"envelope": false, "raw": true} {
		t.Run(name, func(t *testing.T) {
			broker := onAWS(t)
			broker.RawBody = raw
			c, err := broker.Open(t.Context(), transport.Env{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "large"}}}); err != nil {
				t.Fatal(err)
			}
			for _, unit := range []string{"x", "ä", "\x00\xff"} {
				m := sample()
				n := c.Limits().MaxBody / len(unit)
				if raw && unit != "x" {
					n = n * 3 / 4 / len(unit) // in base64
				}
				m.Body = []byte(strings.Repeat(unit, n))
				if _, err := c.Dispatch(t.Context(), []transport.Operation{{Message: m, Queue: "large"}}); err != nil {
					t.Fatalf("%d bytes of %q: %v", len(m.Body), unit, err)
				}
				r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "large"})
				if err != nil {
					t.Fatal(err)
				}
				ds, err := r.Receive(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(m.Body), string(ds[0].Message().Body)); diff != "" {
					t.Errorf("%d bytes of %q came as others", len(m.Body), unit)
				}
				if err := ds[0].Complete(t.Context()); err != nil {
					t.Error(err)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
