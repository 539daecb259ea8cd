package brokertest

import (
	"cmp"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	servicebusVariable = "HOLDFAST_TEST_SERVICEBUS"
	profileVariable    = "HOLDFAST_TEST_SERVICEBUS_PROFILE"
)

// ServiceBusNamespace is a namespace of Azure Service Bus. Its methods may be called from any
// goroutine.
type ServiceBusNamespace struct {
	// ConnectionString has all rights.
	ConnectionString string

	// Admin is the URL of the administration of queues and topics. It is empty where that is the
	// namespace itself, by HTTPS, which is the SDK's default.
	Admin string

	// Control makes the namespace fail. It is nil where the namespace is not of the stand-in: a
	// test that needs it uses [OwnServiceBus].
	Control *ServiceBusControl
}

// ServiceBus returns the namespace of the connection string in HOLDFAST_TEST_SERVICEBUS, where
// tests name entities by [Name] and delete them. Without the variable it is an empty namespace that
// is deleted after the test, of a stand-in that starts with the first test that needs it and ends
// with the process, even when that is killed.
func ServiceBus(t testing.TB) *ServiceBusNamespace {
	t.Helper()
	given := os.Getenv(servicebusVariable)
	if given == "" {
		return OwnServiceBus(t)
	}
	address, emulator := servicebusAddress(given)
	if address == "" {
		t.Fatalf("%s is not a connection string", servicebusVariable) // its text has a key
	}
	n := &ServiceBusNamespace{ConnectionString: given}
	if emulator {
		host, _, _ := net.SplitHostPort(address)
		n.Admin = "http://" + net.JoinHostPort(host, "5300")
	}
	need(t, "Azure Service Bus", address, servicebusVariable)
	return n
}

// servicebusAddress returns the host and port of a connection string, and whether they are an
// emulator's.
func servicebusAddress(connection string) (address string, emulator bool) {
	fields := connectionFields(connection)
	emulator = strings.EqualFold(fields["usedevelopmentemulator"], "true")
	u, err := url.Parse(fields["endpoint"])
	if err != nil || u.Hostname() == "" {
		return "", emulator
	}
	usual := "5671"
	if emulator {
		usual = "5672"
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), usual)), emulator
}

// connectionFields returns the fields of a connection string, with their names in lower case.
func connectionFields(connection string) map[string]string {
	fields := map[string]string{}
	for field := range strings.SplitSeq(connection, ";") {
		name, value, _ := strings.Cut(field, "=")
		fields[strings.ToLower(name)] = value
	}
	return fields
}

// OwnServiceBus returns an empty namespace of the stand-in, whatever HOLDFAST_TEST_SERVICEBUS is,
// with the profile in HOLDFAST_TEST_SERVICEBUS_PROFILE: [ServiceBusAzure] unless set.
// servicebus/README.md compares it with the service.
func OwnServiceBus(t testing.TB) *ServiceBusNamespace {
	t.Helper()
	return ownNamespace(t, namespaceOptions{})
}

// ServiceBusProfile is a set of rules of the stand-in's namespaces.
type ServiceBusProfile string

const (
	// ServiceBusAzure has the rules of the service.
	ServiceBusAzure ServiceBusProfile = "azure"
	// ServiceBusEmulator has the limits of Microsoft's emulator: 10 deliveries of a message, 50
	// queues and topics, 10 connections.
	ServiceBusEmulator ServiceBusProfile = "emulator"
	// ServiceBusLinksUncounted is the service, except that the lock of a message ends with its
	// link, and the delivery does not count.
	ServiceBusLinksUncounted ServiceBusProfile = "links-uncounted"
	// ServiceBusLinksCounted is the same, and the delivery counts.
	ServiceBusLinksCounted ServiceBusProfile = "links-counted"
)

// OwnServiceBusOf is [OwnServiceBus] with a profile.
func OwnServiceBusOf(t testing.TB, profile ServiceBusProfile) *ServiceBusNamespace {
	t.Helper()
	return ownNamespace(t, namespaceOptions{Profile: profile})
}

// OwnServiceBusSized is [OwnServiceBus] with another limit, in bytes, for the size of a message and
// of a batch.
func OwnServiceBusSized(t testing.TB, message, batch int) *ServiceBusNamespace {
	t.Helper()
	return ownNamespace(t, namespaceOptions{MaxMessageSize: message, MaxBatchSize: batch})
}

type namespaceOptions struct {
	Profile        ServiceBusProfile `json:"profile,omitempty"`
	MaxMessageSize int               `json:"maxMessageSize,omitempty"`
	MaxBatchSize   int               `json:"maxBatchSize,omitempty"`
}

func ownNamespace(t testing.TB, options namespaceOptions) *ServiceBusNamespace {
	t.Helper()
	notShort(t, "a stand-in for Azure Service Bus")
	s, err := servicebusServer()
	must(t, err)
	options.Profile = cmp.Or(options.Profile, ServiceBusProfile(os.Getenv(profileVariable)))
	c := &ServiceBusControl{t: t, url: "http://" + s.url("") + "/namespaces"}
	var made struct {
		ID, AMQP, Admin string
		Key             servicebusKey
	}
	must(t, c.try(http.MethodPost, "", options, &made))
	c.url, c.host = c.url+"/"+made.ID, made.AMQP
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the broker's log:\n%s", s.log())
		}
		c.call(http.MethodDelete, "", nil, nil)
	})
	return &ServiceBusNamespace{
		ConnectionString: made.Key.connectionString(made.AMQP),
		Admin:            "http://" + made.Admin,
		Control:          c,
	}
}

var servicebusServer = sync.OnceValues(func() (*server, error) {
	s, err := newScript("servicebus", "../servicebus/main.mjs")
	if err != nil {
		return nil, err
	}
	return s, s.start()
})

// ShortLock returns the duration of a lock for a test that waits for its end. That is d in a
// namespace of the stand-in, which permits it from then on, and elsewhere the service's shortest
// lock, 5 s.
func (n *ServiceBusNamespace) ShortLock(d time.Duration) time.Duration {
	if n.Control == nil {
		return max(d, shortestLock)
	}
	n.Control.allowLocks(d)
	return d
}

// shortestLock is the service's.
const shortestLock = 5 * time.Second

// URL returns the namespace's URL for the command holdfast.
func (n *ServiceBusNamespace) URL() string {
	address, emulator := servicebusAddress(n.ConnectionString)
	fields := connectionFields(n.ConnectionString)
	user := url.UserPassword(fields["sharedaccesskeyname"], fields["sharedaccesskey"])
	u := url.URL{Scheme: "sb", User: user, Host: address}
	if emulator {
		u.RawQuery = url.Values{"emulator": {"true"}, "administration": {n.Admin}}.Encode()
	}
	return u.String()
}

// AdminTransport returns a transport for the SDK's admin client, which by itself connects to the
// namespace's host by HTTPS: its requests go to Admin.
func (n *ServiceBusNamespace) AdminTransport() *http.Client {
	client := &http.Client{Timeout: time.Minute}
	if n.Admin == "" {
		return client
	}
	admin, err := url.Parse(n.Admin)
	if err != nil {
		return client
	}
	client.Transport = redirected{admin}
	return client
}

type redirected struct{ to *url.URL }

func (r redirected) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme, req.URL.Host = r.to.Scheme, r.to.Host
	return http.DefaultTransport.RoundTrip(req)
}
