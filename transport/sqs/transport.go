package sqs

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/holdfast-go/holdfast/transport"
)

// MissingTopic says what becomes of a message that is published when there is no topic of its type.
type MissingTopic string

const (
	// FailMissingTopic has the publish fail: the default.
	FailMissingTopic MissingTopic = "fail"
	// CreateMissingTopic creates the topic, which takes the right to.
	CreateMissingTopic MissingTopic = "create"
	// IgnoreMissingTopic drops the message: without a topic nobody can have subscribed.
	IgnoreMissingTopic MissingTopic = "ignore"
)

// Transport connects to Amazon SQS and SNS in a region. It holds configuration only, and must not
// change while it is open. The zero value is ready: region and credentials come from where the AWS tools look for them,
// such as AWS_REGION, the shared configuration files and the role of the machine.
type Transport struct {
	// Region is such as "eu-central-1". Optional.
	Region string
	// Profile is the name of a profile of the shared configuration files. Optional.
	Profile string
	// Endpoint is the URL of something else that speaks SQS and SNS, such as an emulator. Optional.
	Endpoint string
	// Config takes the place of what is looked for, credentials above all. Region and Endpoint still win over it; Profile
	// does nothing. Its Retryer, if any, repeats requests in place of the driver's, which tries three times. It is neither
	// changed nor kept. Optional.
	Config *aws.Config

	// QueuePrefix and TopicPrefix stand before the name of each queue and topic, such as "test-". All endpoints of a
	// system have the same. Optional.
	QueuePrefix string
	TopicPrefix string
	// MissingTopic is [FailMissingTopic] unless set.
	MissingTopic MissingTopic

	// Retention is how long queues that Install creates keep a message, from a minute to 14 days, in whole
	// seconds. 0 is 4 days.
	Retention time.Duration
	// KMSKey is the key by which queues that Install creates are encrypted: an id, alias or ARN. "" leaves that to SQS.
	KMSKey string
	// ReceiveLimit is how often SQS may hand out a message of the endpoint's own queues: one time more, and it goes to the
	// queue "<endpoint>.dead-letters", from where a running endpoint moves it to its error queue. That is a
	// net under the endpoint's own counting, so it has to be far above the immediate retries. 0 is 100, the most is
	// 1,000, and -1 creates queues without it. A queue that exists is used as it is.
	ReceiveLimit int

	// Lease is how long a received message is ours without being renewed, from a second to 12 h, in whole seconds. Each
	// Receive says so: the visibility timeout of the queue does not matter. 0 is 30 s.
	Lease time.Duration
	// RawBody sends bodies as they are, with the headers in a message attribute, instead of NServiceBus's envelope. Both
	// are read.
	RawBody bool
	// GroupHeader is the header whose value SQS is given as message group id, so that it is fair to the groups: one
	// that sends much does not hold up the others. Messages without it are of no group, but for
	// copies of a received message, which keep its group. Optional.
	GroupHeader string
	// MaxMessage is how many bytes a message may have with all that belongs to it, for queues that take less
	// than 1 MiB: 256 KiB or more. 0 is 1 MiB.
	MaxMessage int
	// WidePolicy has the policy of a queue that subscribes let in all topics of the account whose names begin with
	// TopicPrefix, instead of those of its types. A policy takes about 80 topics otherwise.
	WidePolicy bool
	// ShortDelays offers delays of up to 15 min only, as SQS has them. Longer ones take a further queue for each endpoint.
	ShortDelays bool
}

const (
	defaultLease        = 30 * time.Second
	defaultReceiveLimit = 100
	// maxHold is how long SQS lets a message be hidden, from when it was received.
	maxHold = 12 * time.Hour
	// maxMessage and minMessage bound [Transport].MaxMessage.
	maxMessage = 1 << 20
	minMessage = 256 << 10
)

var _ transport.Transport = (*Transport)(nil)

// Open looks for region and credentials, and asks SQS something to see that they are good.
func (t *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	clients, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	return openConn(ctx, t.withDefaults(), clients, env)
}

// check finds what can be said without AWS.
func (t *Transport) check() error {
	switch {
	case !wholeSeconds(t.Lease, time.Second, maxHold):
		return fmt.Errorf("sqs: Lease %v: it is whole seconds, up to %v, or 0 for %v", t.Lease, maxHold, defaultLease)
	case !wholeSeconds(t.Retention, time.Minute, 14*24*time.Hour):
		return fmt.Errorf("sqs: Retention %v: it is whole seconds from a minute to 14 days, or 0 for 4 days", t.Retention)
	case t.ReceiveLimit < -1 || t.ReceiveLimit > 1000:
		return fmt.Errorf("sqs: ReceiveLimit %d: use 1 to 1000, 0 for %d, or -1 for none", t.ReceiveLimit, defaultReceiveLimit)
	case t.MaxMessage != 0 && (t.MaxMessage < minMessage || t.MaxMessage > maxMessage):
		return fmt.Errorf("sqs: MaxMessage %d: use %d to %d bytes, or 0 for the most", t.MaxMessage, minMessage, maxMessage)
	}
	switch t.MissingTopic {
	case "", FailMissingTopic, CreateMissingTopic, IgnoreMissingTopic:
		return nil
	default:
		return fmt.Errorf("sqs: MissingTopic %q: use %q, %q or %q", t.MissingTopic, FailMissingTopic, CreateMissingTopic, IgnoreMissingTopic)
	}
}

func wholeSeconds(d, from, to time.Duration) bool {
	return d == 0 || d >= from && d <= to && d%time.Second == 0
}

// withDefaults is a copy with what is 0 filled in, but for what is none.
func (t *Transport) withDefaults() Transport {
	own := *t
	own.Config = nil
	own.Lease = cmp.Or(t.Lease, defaultLease)
	own.MissingTopic = cmp.Or(t.MissingTopic, FailMissingTopic)
	own.ReceiveLimit = cmp.Or(t.ReceiveLimit, defaultReceiveLimit)
	own.MaxMessage = cmp.Or(t.MaxMessage, maxMessage)
	return own
}
