package sqs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"github.com/holdfast-go/holdfast/internal/callback"
)

// queueAPI is the part of the SQS client that the driver uses.
type queueAPI interface {
	GetQueueUrl(context.Context, *sqs.GetQueueUrlInput, ...func(*sqs.Options)) (*sqs.GetQueueUrlOutput, error)
	CreateQueue(context.Context, *sqs.CreateQueueInput, ...func(*sqs.Options)) (*sqs.CreateQueueOutput, error)
	DeleteQueue(context.Context, *sqs.DeleteQueueInput, ...func(*sqs.Options)) (*sqs.DeleteQueueOutput, error)
	ListQueues(context.Context, *sqs.ListQueuesInput, ...func(*sqs.Options)) (*sqs.ListQueuesOutput, error)
	GetQueueAttributes(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error)
	SetQueueAttributes(context.Context, *sqs.SetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.SetQueueAttributesOutput, error)
	ReceiveMessage(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
	SendMessageBatch(context.Context, *sqs.SendMessageBatchInput, ...func(*sqs.Options)) (*sqs.SendMessageBatchOutput, error)
	DeleteMessageBatch(context.Context, *sqs.DeleteMessageBatchInput, ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error)
	ChangeMessageVisibilityBatch(context.Context, *sqs.ChangeMessageVisibilityBatchInput, ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error)
}

// topicAPI is the part of the SNS client that the driver uses.
type topicAPI interface {
	CreateTopic(context.Context, *sns.CreateTopicInput, ...func(*sns.Options)) (*sns.CreateTopicOutput, error)
	GetTopicAttributes(context.Context, *sns.GetTopicAttributesInput, ...func(*sns.Options)) (*sns.GetTopicAttributesOutput, error)
	Subscribe(context.Context, *sns.SubscribeInput, ...func(*sns.Options)) (*sns.SubscribeOutput, error)
	SetSubscriptionAttributes(context.Context, *sns.SetSubscriptionAttributesInput, ...func(*sns.Options)) (*sns.SetSubscriptionAttributesOutput, error)
	Unsubscribe(context.Context, *sns.UnsubscribeInput, ...func(*sns.Options)) (*sns.UnsubscribeOutput, error)
	ListSubscriptions(context.Context, *sns.ListSubscriptionsInput, ...func(*sns.Options)) (*sns.ListSubscriptionsOutput, error)
	ListSubscriptionsByTopic(context.Context, *sns.ListSubscriptionsByTopicInput, ...func(*sns.Options)) (*sns.ListSubscriptionsByTopicOutput, error)
	PublishBatch(context.Context, *sns.PublishBatchInput, ...func(*sns.Options)) (*sns.PublishBatchOutput, error)
}

// clients are the clients of one connection.
type clients struct {
	queues   queueAPI
	topics   topicAPI
	identity func(context.Context, *sts.GetCallerIdentityInput, ...func(*sts.Options)) (*sts.GetCallerIdentityOutput, error)
	region   string
	close    func() // closes idle connections
}

const (
	// tries and maxPause configure the SDK's repetition of a request.
	tries    = 3
	maxPause = 2 * time.Second
	// dialTimeout bounds the dialing of AWS.
	dialTimeout = 5 * time.Second
	// connsPerHost is the number of idle connections that are kept: as many as concurrent requests,
	// to save handshakes.
	connsPerHost = 64
)

// dial returns the clients. It sends requests only where the AWS configuration needs them.
func (t *Transport) dial(ctx context.Context) (clients, error) {
	cfg, err := t.load(ctx)
	if err != nil {
		return clients{}, err
	}
	var pool *http.Transport
	if of, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok && t.Config == nil || cfg.HTTPClient == nil {
		pool = newPool(of)
		cfg.HTTPClient = ownBodies{&http.Client{Transport: pool}}
	}
	if cfg.Retryer == nil || t.Config == nil {
		cfg.Retryer = func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts, o.MaxBackoff = tries, maxPause })
		}
	}
	at := optional(t.Endpoint)
	own := clients{
		queues: sqs.NewFromConfig(cfg, func(o *sqs.Options) { o.BaseEndpoint = cmp.Or(at, o.BaseEndpoint) }),
		topics: sns.NewFromConfig(cfg, func(o *sns.Options) { o.BaseEndpoint = cmp.Or(at, o.BaseEndpoint) }),
		identity: sts.NewFromConfig(cfg, func(o *sts.Options) {
			o.BaseEndpoint = cmp.Or(at, o.BaseEndpoint)
		}).GetCallerIdentity,
		region: cfg.Region,
		close:  func() {},
	}
	if pool != nil {
		own.close = pool.CloseIdleConnections
	}
	return own, nil
}

func (t *Transport) load(ctx context.Context) (cfg aws.Config, err error) {
	if t.Config != nil {
		cfg = t.Config.Copy()
		if cfg.Credentials != nil {
			cfg.Credentials = bounded{cfg.Credentials}
		}
		cfg.Region = cmp.Or(t.Region, cfg.Region)
	} else {
		cfg, err = config.LoadDefaultConfig(ctx, config.WithRegion(t.Region), config.WithSharedConfigProfile(t.Profile),
			config.WithLogger(logging.Nop{})) // the errors have the same information
	}
	switch {
	case err != nil:
		return aws.Config{}, fmt.Errorf("sqs: load the AWS configuration: %w", err)
	case cfg.Region == "":
		return aws.Config{}, errors.New("sqs: no region: set Transport.Region or AWS_REGION")
	}
	return cfg, nil
}

// ownBodies is a client that sends copies of bodies. The SDK closes a body as soon as an answer
// begins, while the connection may still be writing it: the write then fails, and net/http closes
// the connection while the answer is being read.
type ownBodies struct{ *http.Client }

func (c ownBodies) Do(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return c.Client.Do(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	own := r.WithContext(r.Context()) // a copy
	own.ContentLength = int64(len(body))
	own.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	own.Body, _ = own.GetBody() // never fails
	return c.Client.Do(own)
}

// newPool returns a transport with more connections than that of the SDK's client, which may be
// nil, and with its other settings, such as trusted certificates.
func newPool(of *awshttp.BuildableClient) *http.Transport {
	if of == nil {
		of = awshttp.NewBuildableClient()
	}
	return of.WithTransportOptions(func(tr *http.Transport) {
		tr.MaxIdleConnsPerHost = connsPerHost
		tr.MaxIdleConns = 2 * connsPerHost
	}).WithDialerOptions(func(d *net.Dialer) { d.Timeout = dialTimeout }).GetTransport()
}

// credentialsTimeout bounds a call of the user's provider of credentials.
const credentialsTimeout = 10 * time.Second

var errNoCredentials = errors.New("sqs: the credentials of Transport.Config were not returned in time")

// bounded is the user's provider of credentials. A request waits for the provider no longer than
// for its own context: the SDK calls the provider for each request, or once for many if the
// provider is an [aws.CredentialsCache].
type bounded struct{ aws.CredentialsProvider }

// Retrieve implements [aws.CredentialsProvider].
func (b bounded) Retrieve(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, credentialsTimeout, errNoCredentials)
	defer cancel()
	var answer aws.Credentials
	err := callback.Run(ctx, func() (err error) {
		answer, err = b.CredentialsProvider.Retrieve(ctx)
		return err
	})
	if err != nil { // a call that was left may write the answer
		return aws.Credentials{}, err
	}
	return answer, nil
}

// IsCredentialsProvider lets the SDK find out what the provider is, such as
// [aws.AnonymousCredentials].
func (b bounded) IsCredentialsProvider(target aws.CredentialsProvider) bool {
	return aws.IsCredentialsProvider(b.CredentialsProvider, target)
}
