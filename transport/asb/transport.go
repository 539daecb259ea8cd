package asb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"github.com/holdfast-go/holdfast/transport"
)

// MissingTopic is the handling of an event that is published to a topic that does not exist.
type MissingTopic string

const (
	// FailMissingTopic fails the publish with [transport.ErrNoQueue].
	FailMissingTopic MissingTopic = "fail"
	// IgnoreMissingTopic drops the event, with one line of the log for each topic: a topic that
	// does not exist has no subscribers. NServiceBus does the same.
	IgnoreMissingTopic MissingTopic = "ignore"
)

// Transport connects to a namespace of Azure Service Bus. It holds configuration only, and must not
// change while it is open. Either ConnectionString or both Namespace and Credential are required.
type Transport struct {
	// ConnectionString is the string that the portal shows:
	// "Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…". With "UseDevelopmentEmulator=true"
	// connections have no TLS. Neither errors nor logs show its keys.
	ConnectionString string
	// Namespace is the host, such as "shop.servicebus.windows.net", and Credential a credential of
	// package azidentity.
	Namespace  string
	Credential azcore.TokenCredential

	// Address is the "host:port" that is dialled instead of the namespace: a proxy or a private
	// address. It must still present the namespace's certificate. Optional.
	Address string
	// WebSocket connects through port 443 if a firewall blocks 5671: it dials the URL, wss://…,
	// with the subprotocol "AMQPWSB10", with a WebSocket library of your choice. It must return
	// within 10 s, and when ctx ends. Optional.
	WebSocket func(ctx context.Context, url string) (net.Conn, error)
	// TLS configures TLS. nil: the system's certificate authorities.
	TLS *tls.Config
	// Administration is the URL at which queues and topics are managed. Default: "https://" and the
	// namespace, and port 5300 of an emulator.
	Administration string

	// Hierarchy is a prefix of the names of all queues and topics, followed by a slash: with
	// "prod", the queue of the endpoint "sales" is "prod/sales". Optional.
	Hierarchy string
	// MissingTopic selects how a publish to a missing topic is handled. The zero value fails if the
	// connection has seen the topic, by a publish that succeeded or by Install or Subscribe, and
	// else drops the event as [IgnoreMissingTopic] does.
	MissingTopic MissingTopic
	// Topology selects the topics of events. The zero value is sufficient unless other systems use
	// the namespace.
	Topology Topology

	// LockDuration is the time until a lock that is not renewed expires: 5 s to 5 min. Install
	// creates queues with it. It must not be longer than the lock duration of the queues received
	// from. 0: the lock duration of the endpoint's queue, or 5 min without the right to read it.
	LockDuration time.Duration
	// MaxDeliveryCount is how often the broker delivers a message of the endpoint's own queues
	// before it moves the message to the queue's dead letters. The endpoint's own count should end
	// first, so MaxDeliveryCount must be far above the number of immediate retries. 0: 100.
	// Existing queues are used unchanged. Install sets at most 10 on Microsoft's emulator, which
	// refuses more.
	MaxDeliveryCount int
	// KeepDeadLetters leaves dead letters in place. Otherwise a running endpoint moves the dead
	// letters of its queues to its error queue.
	KeepDeadLetters bool
	// MaxSize is the size of the queues and topics that Install creates, in megabytes. 0: 5120.
	MaxSize int
	// Partitioned makes Install create queues and topics that several brokers share and that keep
	// no order. Such queues cannot be browsed or purged.
	Partitioned bool
	// DuplicateDetection makes Install create the endpoint's queues such that a message sent twice
	// within this time is kept once. 20 s to 7 days; 0: no detection. Existing queues are used
	// unchanged.
	DuplicateDetection time.Duration

	// MaxMessageSize is the namespace's limit for a message, headers included, in bytes. 0: 256
	// KiB, that of the standard tier.
	MaxMessageSize int
	// Links is the number of links on which a busy queue is received. 0: 2.
	Links int
	// Translate is called with each received message before the endpoint processes it, and may
	// change it. For messages of other producers it can set a type in the header
	// NServiceBus.EnclosedMessageTypes, or another body. The message's Native has the broker's
	// properties. If Translate panics, the message is moved to the error queue. If Translate hangs,
	// its message keeps its slot. Several goroutines call it at once. Optional.
	Translate func(m *transport.Message)
}

const (
	defaultLock          = 5 * time.Minute
	defaultDeliveryCount = 100
	defaultMaxSize       = 5 * 1024
	defaultMessageSize   = 256 << 10
	defaultLinks         = 2
	mostLinks            = 16
)

var _ transport.Transport = (*Transport)(nil)

// System returns "servicebus".
func (*Transport) System() string { return "servicebus" }

// Open connects and authenticates. It fails within seconds when the namespace cannot be reached or
// refuses the key.
func (t *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	ns, err := newNamespace(t, env)
	if err != nil {
		return nil, err
	}
	return openConn(ctx, ns, env)
}

// check validates the configuration.
func (t *Transport) check() error {
	switch {
	case t.LockDuration != 0 && (t.LockDuration < time.Second || t.LockDuration > defaultLock):
		return fmt.Errorf("asb: LockDuration %v: the service has 5 s to %v, or 0 for that", t.LockDuration, defaultLock)
	case t.MaxDeliveryCount < 0 || t.MaxDeliveryCount > 2000:
		return fmt.Errorf("asb: MaxDeliveryCount %d: use 1 to 2000, or 0 for %d", t.MaxDeliveryCount, defaultDeliveryCount)
	case t.MaxMessageSize < 0 || t.MaxMessageSize > 0 && t.MaxMessageSize < 64<<10 || t.MaxMessageSize > 100<<20:
		return fmt.Errorf("asb: MaxMessageSize %d: it is in bytes, 64 KiB to 100 MiB, or 0 for %d KiB", t.MaxMessageSize, defaultMessageSize>>10)
	case t.Links < 0 || t.Links > mostLinks:
		return fmt.Errorf("asb: Links %d: use 1 to %d, or 0 for %d", t.Links, mostLinks, defaultLinks)
	case t.DuplicateDetection != 0 && (t.DuplicateDetection < 20*time.Second || t.DuplicateDetection > 7*24*time.Hour):
		return fmt.Errorf("asb: DuplicateDetection %v: the service has 20 s to 7 days, or 0 for none", t.DuplicateDetection)
	case t.MaxSize < 0:
		return fmt.Errorf("asb: MaxSize %d: it is in megabytes, or 0 for %d", t.MaxSize, defaultMaxSize)
	case t.Hierarchy != "" && !validEntity(t.Hierarchy):
		return fmt.Errorf("asb: Hierarchy %q: %s", t.Hierarchy, entityRule)
	case t.MissingTopic != "" && t.MissingTopic != FailMissingTopic && t.MissingTopic != IgnoreMissingTopic:
		return fmt.Errorf("asb: MissingTopic %q: use %q, %q, or leave it out", t.MissingTopic, FailMissingTopic, IgnoreMissingTopic)
	}
	return t.Topology.check()
}

var errURL = errors.New("asb: not a valid URL: write sb://KEYNAME:KEY@NAMESPACE, with special characters of the key percent-encoded")

// ParseURL returns the Transport of a URL, "sb://KEYNAME:KEY@NAMESPACE.servicebus.windows.net".
// Without a key the caller sets Transport.Credential before it opens the Transport. Options of the
// URL:
//
//   - hierarchy=NAME and administration=URL: the fields of these names
//   - missing_topic=fail or ignore: MissingTopic
//   - max_message_size=BYTES: MaxMessageSize
//   - emulator=true: the host is Microsoft's emulator
//   - topic=TYPE=TOPIC: Topology.PublishTo and SubscribeTo; may be repeated
//   - shared_topic=TOPIC: Topology.Shared; may be repeated
//   - no_hierarchies=true: Topology.NoHierarchies
//
// Errors name the option that is unknown or not valid, and repeat nothing else of the URL.
func ParseURL(raw string) (*Transport, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "sb" || u.Host == "" || u.Fragment != "" || strings.Contains(u.RawQuery, "@") {
		return nil, errURL
	}
	if strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("asb: a path follows the host: use ?hierarchy=NAME to put NAME before all queues and topics")
	}
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errURL
	}
	t := &Transport{}
	emulator := false
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if err := t.setOption(name, options[name], &emulator); err != nil {
			return nil, err
		}
	}
	key, keyed := u.User.Password()
	switch {
	case u.User != nil && !keyed:
		return nil, errors.New("asb: a key name without a key: write sb://KEYNAME:KEY@HOST, or sb://HOST to use a credential of Entra ID")
	case !keyed && emulator:
		return nil, errors.New("asb: an emulator needs a key: write sb://KEYNAME:KEY@HOST?emulator=true")
	case !keyed:
		t.Namespace = u.Host
		return t, nil
	}
	t.ConnectionString = fmt.Sprintf("Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s", u.Host, u.User.Username(), key)
	if emulator {
		t.ConnectionString += ";UseDevelopmentEmulator=true"
	}
	return t, nil
}

// setOption sets what an option of a URL stands for.
func (t *Transport) setOption(name string, values []string, emulator *bool) (err error) {
	if len(values) > 1 && name != "topic" && name != "shared_topic" {
		return fmt.Errorf("asb: option %q of the URL is set %d times", name, len(values))
	}
	value, want := values[0], "true or false"
	switch name {
	case "hierarchy":
		t.Hierarchy = value
	case "missing_topic":
		t.MissingTopic = MissingTopic(value)
	case "administration":
		t.Administration = value
	case "shared_topic":
		t.Topology.Shared = values
	case "emulator":
		*emulator, err = strconv.ParseBool(value)
	case "no_hierarchies":
		t.Topology.NoHierarchies, err = strconv.ParseBool(value)
	case "max_message_size":
		want = "a number of bytes"
		t.MaxMessageSize, err = strconv.Atoi(value)
	case "topic":
		want = "TYPE=TOPIC"
		err = t.Topology.mapTypes(values)
	default:
		return fmt.Errorf("asb: unknown option %q of the URL: want administration, emulator, hierarchy, max_message_size, "+
			"missing_topic, no_hierarchies, shared_topic or topic", name)
	}
	if err != nil {
		return fmt.Errorf("asb: option %q of the URL: want %s", name, want)
	}
	return nil
}

// mapTypes maps types to topics, by pairs TYPE=TOPIC.
func (y *Topology) mapTypes(pairs []string) error {
	y.PublishTo, y.SubscribeTo = map[string]string{}, map[string][]string{}
	for _, pair := range pairs {
		kind, topic, _ := strings.Cut(pair, "=")
		if kind == "" || topic == "" {
			return errURL
		}
		y.PublishTo[kind] = topic
		y.SubscribeTo[kind] = append(y.SubscribeTo[kind], topic)
	}
	return nil
}
