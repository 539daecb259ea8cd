package sqs_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqs"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	t.Run("envelope", func(t *testing.T) { transporttest.Run(t, conformance(t, false)) })
}

// Raw bodies differ only in what the rules of these themes touch; soak has them all.
func TestConformanceRawBody(t *testing.T) {
	t.Parallel()
	h := conformance(t, true)
	if os.Getenv("HOLDFAST_SOAK") != "" {
		transporttest.Run(t, h)
		return
	}
	transporttest.Run(t, h, "Messages", "Dispatching", "Delays", "Publishing", "Browsing and purging")
}

// SQS promises neither an order nor that an answer has every message.
func TestConformanceSampled(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			front := brokertest.NewSQSFront(t, brokertest.SQS(t))
			front.Sample(seed)
			h := conformanceOn(t, front.URL, false)
			h.Unordered = true
			transporttest.Run(t, h, "Receiving", "Dispatching", "Browsing and purging")
		})
	}
}

func at(endpoint string, raw bool) *sqs.Transport {
	return &sqs.Transport{Endpoint: endpoint, Config: testConfig(), RawBody: raw}
}

// kit installs what long delays need, as endpoints do, and creates the topics that the kit
// publishes to without.
type kit struct{ *sqs.Transport }

func (k kit) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	own := *k.Transport
	own.MissingTopic = sqs.CreateMissingTopic
	c, err := own.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return kitConn{c.(fullConn)}, nil
}

type kitConn struct{ fullConn }

func (k kitConn) Install(ctx context.Context, plan transport.Plan) error {
	plan.Delays = true
	return k.fullConn.Install(ctx, plan)
}

// testConfig is good for a stand-in, which takes any credentials.
func testConfig() *aws.Config {
	return &aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")}
}

func conformance(t *testing.T, raw bool) transporttest.Harness {
	t.Helper()
	return conformanceOn(t, brokertest.SQS(t), raw)
}

func conformanceOn(t *testing.T, broker string, raw bool) transporttest.Harness {
	t.Helper()
	short := func(endpoint string) *sqs.Transport {
		own := at(endpoint, raw)
		own.Lease = 4 * time.Second
		return own
	}
	return transporttest.Harness{
		Unordered:  os.Getenv("HOLDFAST_TEST_SQS") != "", // standard queues of AWS
		Open:       func(testing.TB) transport.Transport { return kit{at(broker, raw)} },
		ShortLease: func(testing.TB) transport.Transport { return kit{short(broker)} },
		PutUndecodable: func(t testing.TB, _ transport.Transport, queue string) {
			t.Helper()
			put(t, broker, queue, "a body", map[string]string{"NServiceBus.AmazonSQS.Headers": "{no json"})
		},
		LimitDeliveries: func(t testing.TB, _ transport.Transport, queue string, most int) {
			t.Helper()
			limitDeliveries(t, broker, queue, most)
		},
		Break: func(t testing.TB) (transport.Transport, transporttest.Link) {
			u, err := url.Parse(broker)
			if err != nil {
				t.Fatal(err)
			}
			proxy := brokertest.NewProxy(t, u.Host)
			return kit{short(proxy.URL(t, broker))}, proxy
		},
		Restart: func(t testing.TB) (transport.Transport, func()) {
			node := brokertest.OwnSQS(t)
			return kit{short(node.URL)}, func() { node.Restart(os.Kill) }
		},
	}
}

// client is the SDK's, for what other programs do. It leaves no connections behind.
func client(endpoint string) *awssqs.Client {
	return awssqs.NewFromConfig(*testConfig(), func(o *awssqs.Options) {
		o.BaseEndpoint = &endpoint
		o.HTTPClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	})
}

// limitDeliveries gives a queue a redrive policy, and creates the queue that it names.
func limitDeliveries(t testing.TB, endpoint, queue string, most int) {
	t.Helper()
	c := client(endpoint)
	name := sanitised(queue)
	dead, err := c.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: aws.String(name + "-moved")})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: dead.QueueUrl, AttributeNames: []types.QueueAttributeName{"QueueArn"}})
	if err != nil {
		t.Fatal(err)
	}
	found, err := c.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		t.Fatal(err)
	}
	policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, got.Attributes["QueueArn"], most)
	if _, err := c.SetQueueAttributes(t.Context(), &awssqs.SetQueueAttributesInput{QueueUrl: found.QueueUrl, Attributes: map[string]string{"RedrivePolicy": policy}}); err != nil {
		t.Fatal(err)
	}
}

func sanitised(s string) string { return strings.ReplaceAll(s, ".", "-") }

// put sends a message as another program would.
func put(t testing.TB, endpoint, queue, body string, attributes map[string]string) {
	t.Helper()
	c := client(endpoint)
	name := sanitised(queue)
	found, err := c.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		t.Fatal(err)
	}
	in := &awssqs.SendMessageInput{QueueUrl: found.QueueUrl, MessageBody: &body, MessageAttributes: map[string]types.MessageAttributeValue{}}
	for name, value := range attributes {
		in.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
	}
	if _, err := c.SendMessage(t.Context(), in); err != nil {
		t.Fatal(err)
	}
}
