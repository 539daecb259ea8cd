package asb

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"github.com/holdfast-go/holdfast/transport"
)

// Transport connects to a namespace of Azure Service Bus. It holds configuration only, and must not
// change while it is open. Either ConnectionString or both Namespace and Credential are required.
type Transport struct {
	// ConnectionString is what the portal shows: "Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…".
	// With "UseDevelopmentEmulator=true" the connection is without TLS. Neither errors nor logs show its keys.
	ConnectionString string
	// Namespace is the host, such as "shop.servicebus.windows.net", and Credential one of package azidentity.
	Namespace  string
	Credential azcore.TokenCredential

	// Address is dialled in the place of the namespace, "host:port": a proxy, or a private address. The namespace's
	// certificate is expected all the same. Optional.
	Address string
	// WebSocket connects through port 443, where a firewall blocks 5671: it dials the URL, wss://…, with the
	// subprotocol "AMQPWSB10", by a library of the user's. Optional.
	WebSocket func(ctx context.Context, url string) (net.Conn, error)
	// TLS is nil for the system's certificate authorities.
	TLS *tls.Config
	// Administration is where queues and topics are managed: "https://" and the namespace unless set, and port 5300 of
	// an emulator.
	Administration string

	// Hierarchy is put before the names of all queues and topics, with a slash: with "prod", the queue of
	// the endpoint "sales" is "prod/sales". Optional.
	Hierarchy string
	// Topology chooses the topics of events. The zero value is enough unless others share the namespace.
	Topology Topology

	// LockDuration is the time until a lock that is not renewed expires. Install creates queues with it. 5 s to 5 min.
	// 0 is that of the endpoint's queue, or 5 min without the right to look it up. It must not be longer than that of
	// the queues received from.
	LockDuration time.Duration
	// MaxDeliveryCount is how often the broker delivers a message of the endpoint's own queues before it moves it
	// to the queue's dead letters. The endpoint's own counting should end first, so it has to be far above the
	// immediate retries. 0 is 100. A queue that exists is used as it is. Install sets at most 10 where Microsoft's
	// emulator refuses more.
	MaxDeliveryCount int
	// KeepDeadLetters leaves dead letters in place. Otherwise a running endpoint moves those of its queues to its
	// error queue.
	KeepDeadLetters bool
	// MaxSize is the size of queues and topics that Install creates, in megabytes. 0 is 5120.
	MaxSize int
	// Partitioned creates queues and topics that several brokers share, which keep no order. Such queues cannot be
	// browsed or purged.
	Partitioned bool
	// DuplicateDetection creates the endpoint's queues such that a message sent twice within this time is kept once.
	// 20 s to 7 days; 0 is none. A queue that exists is used as it is.
	DuplicateDetection time.Duration

	// MaxMessageSize is the namespace's limit for a message, in bytes, headers included. 0 is the 256 KiB of the
	// standard tier.
	MaxMessageSize int
	// Links is how many links a busy queue is received from. 0 is 2.
	Links int
	// Translate is called with each received message before the endpoint sees it, and may change it, such as give
	// messages of other producers a type by the header NServiceBus.EnclosedMessageTypes, or another body. Native has
	// the message's properties. A message for which it panics is moved to the error queue. It is called by several
	// goroutines at once. Optional.
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

// Open connects and authenticates. It fails within seconds when the namespace cannot be reached or refuses the key.
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
	}
	return t.Topology.check()
}
