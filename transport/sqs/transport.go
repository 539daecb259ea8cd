package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/holdfast-go/holdfast/transport"
)

// MissingTopic is the handling of a message that is published to a topic that does not exist.
type MissingTopic string

const (
	// FailMissingTopic fails the publish. It is the default.
	FailMissingTopic MissingTopic = "fail"
	// CreateMissingTopic creates the topic, which needs the right to.
	CreateMissingTopic MissingTopic = "create"
	// IgnoreMissingTopic drops the message: a topic that does not exist has no subscribers.
	IgnoreMissingTopic MissingTopic = "ignore"
)

// None is no limit in a field whose zero is a default: [Transport].ReceiveLimit.
const None = -1

// Transport connects to Amazon SQS and SNS in a region. It is configuration only, and must not
// change while it is open. The zero value is ready: region and credentials are those of the AWS
// tools, such as AWS_REGION, the shared configuration files and the role of the machine.
type Transport struct {
	// Region is the AWS region, such as "eu-central-1". Optional.
	Region string
	// Profile is the name of a profile in the shared configuration files. Optional.
	Profile string
	// Endpoint is the URL of another implementation of SQS and SNS, such as an emulator. Optional.
	Endpoint string
	// Config replaces the AWS configuration of the machine, including the credentials. Region and
	// Endpoint override it; Profile is ignored. Its Retryer, if any, replaces the driver's, which
	// attempts a request three times. The driver neither changes nor keeps Config. Optional.
	Config *aws.Config

	// QueuePrefix and TopicPrefix precede the name of each queue and topic, such as "test-". All
	// endpoints of a system must use the same. Optional.
	QueuePrefix string
	TopicPrefix string
	// MissingTopic selects how a publish to a missing topic is handled. Default:
	// [FailMissingTopic].
	MissingTopic MissingTopic
	// EventTopics selects the topics of events with base types. Default: [AllTopics]. NServiceBus
	// publishes as [ConcreteTopic] does: an endpoint of NServiceBus that handles an event and its
	// base type gets two copies of each event of a Holdfast endpoint with another setting.
	EventTopics EventTopics

	// Retention is how long the queues that Install creates keep a message, in whole seconds from a
	// minute to 14 days. 0: 4 days.
	Retention time.Duration
	// KMSKey is the key that encrypts the queues that Install creates: an id, alias or ARN. "":
	// SQS's default.
	KMSKey string
	// ReceiveLimit is how often SQS delivers a message of the endpoint's own queues. After that SQS
	// moves it to the dead-letter queue "<endpoint>-dead-letters", from which a running endpoint
	// moves it to its error queue. The limit backs up the endpoint's own retries, so it must be far
	// above their number. 0: 100. The maximum is 1,000. [None] creates queues without a dead-letter
	// queue. Existing queues are not changed.
	ReceiveLimit int

	// Lease is how long a received message is hidden from other receivers unless its lease is
	// renewed: whole seconds from a second to 12 h. It overrides the visibility timeout of the
	// queue. 0: 30 s.
	Lease time.Duration
	// RawBody sends bodies unchanged, with the headers in a message attribute, instead of
	// NServiceBus's envelope. The endpoint reads both formats.
	RawBody bool
	// GroupHeader is the header whose value is the message group id. SQS delivers the groups
	// fairly, so that a group with many messages does not delay the others. Messages without the
	// header have no group, except copies of a received message, which keep its group. Optional.
	GroupHeader string
	// MaxMessage is the maximum size of a message with its attributes, in bytes, for queues with a
	// limit under 1 MiB: 256 KiB or more. 0: 1 MiB.
	MaxMessage int
	// WidePolicy allows all topics of the account whose names begin with TopicPrefix to send to a
	// subscribing queue, instead of only the topics of its types. Otherwise a policy has room for
	// about 80 topics.
	WidePolicy bool
	// ShortDelays limits delays to 15 minutes, the maximum of SQS. Longer delays need a delay queue
	// for each endpoint.
	ShortDelays bool
}

const (
	defaultLease        = 30 * time.Second
	defaultReceiveLimit = 100
	// maxHold is SQS's limit for hiding a message, from when it was received.
	maxHold = 12 * time.Hour
	// maxMessage and minMessage bound [Transport].MaxMessage.
	maxMessage = 1 << 20
	minMessage = 256 << 10
)

var _ transport.Transport = (*Transport)(nil)

// System returns "aws_sqs".
func (*Transport) System() string { return "aws_sqs" }

// Open finds region and credentials, and checks them with a request to SQS.
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

// check validates the fields without AWS.
func (t *Transport) check() error {
	switch {
	case !wholeSeconds(t.Lease, time.Second, maxHold):
		return fmt.Errorf("sqs: Lease %v: want whole seconds, up to %v, or 0 for %v", t.Lease, maxHold, defaultLease)
	case !wholeSeconds(t.Retention, time.Minute, 14*24*time.Hour):
		return fmt.Errorf("sqs: Retention %v: want whole seconds from a minute to 14 days, or 0 for 4 days", t.Retention)
	case t.ReceiveLimit < None || t.ReceiveLimit > 1000:
		return fmt.Errorf("sqs: ReceiveLimit %d: use 1 to 1000, 0 for %d, or None",
			t.ReceiveLimit, defaultReceiveLimit)
	case t.MaxMessage != 0 && (t.MaxMessage < minMessage || t.MaxMessage > maxMessage):
		return fmt.Errorf("sqs: MaxMessage %d: use %d to %d bytes, or 0 for %d", t.MaxMessage, minMessage, maxMessage, maxMessage)
	}
	switch t.MissingTopic {
	case "", FailMissingTopic, CreateMissingTopic, IgnoreMissingTopic:
	default:
		return fmt.Errorf("sqs: MissingTopic %q: use %q, %q or %q",
			t.MissingTopic, FailMissingTopic, CreateMissingTopic, IgnoreMissingTopic)
	}
	return t.EventTopics.check()
}

func wholeSeconds(d, from, to time.Duration) bool {
	return d == 0 || d >= from && d <= to && d%time.Second == 0
}

// withDefaults returns a copy without Config and with the defaults set, except those where 0 has a
// meaning.
func (t *Transport) withDefaults() Transport {
	own := *t
	own.Config = nil
	own.Lease = cmp.Or(t.Lease, defaultLease)
	own.MissingTopic = cmp.Or(t.MissingTopic, FailMissingTopic)
	own.EventTopics = cmp.Or(t.EventTopics, AllTopics)
	own.ReceiveLimit = cmp.Or(t.ReceiveLimit, defaultReceiveLimit)
	own.MaxMessage = cmp.Or(t.MaxMessage, maxMessage)
	return own
}

var errNotURL = errors.New("sqs: want sqs://REGION with options such as ?profile=name: " +
	"credentials come from where the AWS tools look for them")

// ParseURL returns the transport of a URL such as "sqs://eu-central-1?profile=shop". The host is
// the region; "sqs://" leaves the region to the AWS tools' configuration. The options have the
// names of the fields:
//
//	profile, endpoint, queue_prefix, topic_prefix, missing_topic, event_topics, kms_key, group_header
//	retention, lease                               a duration such as 168h
//	receive_limit, max_message                     a number
//	raw_body, wide_policy, short_delays            true or false
//
// Credentials are never part of the URL. An error names the option that is wrong, and does not
// repeat the URL.
func ParseURL(s string) (*Transport, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("sqs: not a valid URL") // err repeats it
	}
	if u.Scheme != "sqs" || u.User != nil || u.Path != "" && u.Path != "/" || u.Opaque != "" || u.Fragment != "" {
		return nil, errNotURL
	}
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("sqs: the options are not valid: percent-encode special characters")
	}
	t := &Transport{Region: u.Host}
	for name, values := range options {
		if len(values) > 1 {
			return nil, fmt.Errorf("sqs: option %q is set %d times", name, len(values))
		}
		if err := t.setOption(name, values[0]); err != nil {
			return nil, err
		}
	}
	return t, t.check()
}

func (t *Transport) setOption(name, value string) error {
	texts := map[string]*string{
		"profile": &t.Profile, "endpoint": &t.Endpoint, "queue_prefix": &t.QueuePrefix, "topic_prefix": &t.TopicPrefix,
		"missing_topic": (*string)(&t.MissingTopic), "event_topics": (*string)(&t.EventTopics), "kms_key": &t.KMSKey,
		"group_header": &t.GroupHeader,
	}
	durations := map[string]*time.Duration{"retention": &t.Retention, "lease": &t.Lease}
	numbers := map[string]*int{"receive_limit": &t.ReceiveLimit, "max_message": &t.MaxMessage}
	flags := map[string]*bool{"raw_body": &t.RawBody, "wide_policy": &t.WidePolicy, "short_delays": &t.ShortDelays}
	var err error
	switch {
	case texts[name] != nil:
		*texts[name] = value
		if name == "endpoint" {
			return checkEndpoint(value)
		}
		return nil
	case durations[name] != nil:
		*durations[name], err = time.ParseDuration(value)
	case numbers[name] != nil:
		*numbers[name], err = strconv.Atoi(value)
	case flags[name] != nil:
		*flags[name], err = strconv.ParseBool(value)
	case strings.Contains(name, "@"): // the rest of a password that holds a ?
		return errNotURL
	default:
		return fmt.Errorf("sqs: unknown option %q: want endpoint, event_topics, group_header, kms_key, lease, max_message, "+
			"missing_topic, profile, queue_prefix, raw_body, receive_limit, retention, short_delays, topic_prefix or wide_policy",
			name)
	}
	if err != nil {
		return fmt.Errorf("sqs: option %s: %w", name, err)
	}
	return nil
}

func checkEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return errors.New("sqs: option endpoint: not a valid URL")
	case u.Host == "":
		return errors.New("sqs: option endpoint: no host")
	}
	return nil
}
