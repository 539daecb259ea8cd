package sqs_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// noCredentials is a provider that fails.
type noCredentials struct{}

func (noCredentials) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{}, errors.New("no credentials here")
}

func TestOpenSaysWhatIsWrongWithItsConfiguration(t *testing.T) {
	someone := credentials.NewStaticCredentialsProvider("key", "secret-of-ours", "")
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/none")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/none")
	for _, test := range []struct {
		what   string
		tr     sqs.Transport
		advice string
	}{
		{"no region", sqs.Transport{}, "set Transport.Region or AWS_REGION"},
		{"no such profile", sqs.Transport{Region: "eu-central-1", Profile: "nope"}, "nope"},
		{
			"no credentials",
			sqs.Transport{Endpoint: "http://127.0.0.1:1", Config: &aws.Config{Region: "eu-central-1", Credentials: noCredentials{}}},
			"no credentials: set AWS_PROFILE",
		},
		{
			"no such region",
			sqs.Transport{Endpoint: "http://sqs.nowhere-1.invalid", Config: &aws.Config{Region: "nowhere-1", Credentials: someone}},
			`check the region "nowhere-1"`,
		},
		{
			"no credentials here",
			sqs.Transport{Endpoint: "http://127.0.0.1:1", Config: &aws.Config{Region: "eu-central-1", Credentials: someone}},
			"connection refused",
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := test.tr.Open(ctx, transport.Env{})
		cancel()
		if err == nil || !strings.Contains(err.Error(), test.advice) {
			t.Errorf("%s: %v, want %q", test.what, err, test.advice)
		}
		if err != nil && strings.Contains(err.Error(), "secret-of-ours") {
			t.Errorf("%s: the error tells the secret: %v", test.what, err)
		}
	}
}

// What uses a deleted queue fails until the queue exists again.
func TestADeletedQueueFailsUntilItExistsAgain(t *testing.T) {
	broker := brokertest.SQS(t)
	queue := brokertest.Name(t, "orders")
	c := open(t, at(broker, false), "")
	plan := transport.Plan{Queues: []transport.Queue{{Name: queue}}}
	install(t, c, plan)
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Receive(t.Context(), 1); !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("Receive: %v", err)
	}
	op := transport.Operation{Queue: queue, Message: testMessage("m")}
	for range 2 { // of which the first may not have known yet
		if _, err := c.Dispatch(t.Context(), []transport.Operation{op}); !errors.Is(err, transport.ErrNoQueue) {
			t.Errorf("Dispatch: %v", err)
		}
	}
	install(t, c, plan)
	send(t, c, op)
	ds, err := r.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := ds[0].Complete(t.Context()); err != nil {
		t.Error(err)
	}
}

// Deleting an endpoint's queues ends their subscriptions, also those that other programs made.
func TestRemoveEndsSubscriptions(t *testing.T) {
	t.Parallel()
	broker := brokertest.SQS(t)
	queue, other, typeName := brokertest.Name(t, "orders"), brokertest.Name(t, "billing"), brokertest.Name(t, "Placed")
	c := open(t, at(broker, false), "")
	install(t, c, transport.Plan{Delays: true, Queues: []transport.Queue{{Name: queue}, {Name: other}}})
	for _, q := range []string{queue, other} {
		if err := c.Subscribe(t.Context(), q, []string{typeName}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := c.Remove(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{queue, queue + "-delay.fifo"} {
		if _, err := client(broker).GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: &gone}); err == nil {
			t.Errorf("%s is still there", gone)
		}
	}
	install(t, c, transport.Plan{Queues: []transport.Queue{{Name: queue}}})
	send(t, c, transport.Operation{Types: []string{typeName}, Message: testMessage("m")})
	if got := receiveAll(t, c, other, 1); len(got) != 1 {
		t.Errorf("who stays subscribed received %v", got)
	}
	if got := receiveAll(t, c, queue, 0); len(got) != 0 {
		t.Errorf("the new queue of that name received %v", got)
	}
}
