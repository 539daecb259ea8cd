package asb_test

import (
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	ns := sharedNamespace(t)
	h := transporttest.Harness{
		Open: func(t testing.TB) transport.Transport { return ns.transport(t) },
		ShortLease: func(t testing.TB) transport.Transport {
			tr := ns.transport(t)
			tr.LockDuration = ns.ShortLock(shortLock)
			return tr
		},
		Name: ns.name,
		Translate: func(t testing.TB, f func(*transport.Message)) transport.Transport {
			tr := ns.transport(t)
			tr.Translate = f
			return tr
		},
		OneAtATime: true,
		PutUndecodable: func(t testing.TB, _ transport.Transport, queue string) {
			putUndecodable(t, ns.ServiceBusNamespace, queue)
		},
		LimitDeliveries: func(t testing.TB, _ transport.Transport, queue string, most int) {
			manage := rawAdmin(t, ns.ServiceBusNamespace)
			found, err := manage.GetQueue(within(t), queue, nil)
			if err == nil {
				found.MaxDeliveryCount = new(int32(most)) //nolint:gosec // small
				_, err = manage.UpdateQueue(within(t), queue, found.QueueProperties, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		Break: func(t testing.TB) (transport.Transport, transporttest.Link) {
			proxy := brokertest.NewProxy(t, hostOf(t, ns.ServiceBusNamespace))
			tr := ns.transport(t)
			tr.LockDuration, tr.Address = ns.ShortLock(shortLock), proxy.Addr()
			return tr, proxy
		},
	}
	transporttest.Run(t, h)
}

// shortLock is the lock duration for rules that wait for the end of a lock.
const shortLock = 4 * time.Second

// hostOf returns the address of a namespace.
func hostOf(t testing.TB, ns *brokertest.ServiceBusNamespace) string {
	t.Helper()
	for field := range strings.SplitSeq(ns.ConnectionString, ";") {
		if text, ok := strings.CutPrefix(field, "Endpoint="); ok {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal("the connection string has no URL")
			}
			return u.Host
		}
	}
	t.Fatal("the connection string names no host")
	return ""
}

// putUndecodable sends a message whose body is neither bytes nor text.
func putUndecodable(t testing.TB, ns *brokertest.ServiceBusNamespace, queue string) {
	t.Helper()
	err := rawSender(t, ns, queue).SendAMQPAnnotatedMessage(within(t), &azservicebus.AMQPAnnotatedMessage{
		Body:       azservicebus.AMQPAnnotatedMessageBody{Value: map[string]any{"foreign": int64(1)}},
		Properties: &azservicebus.AMQPAnnotatedMessageProperties{MessageID: "foreign"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

// plainly connects without TLS, in the place of a WebSocket.
func plainly(t testing.TB, ns *brokertest.ServiceBusNamespace) func(context.Context, string) (net.Conn, error) {
	t.Helper()
	host := hostOf(t, ns)
	return func(ctx context.Context, url string) (net.Conn, error) {
		if want := "wss://" + host + "/$servicebus/websocket"; url != want {
			t.Errorf("dials %q, want %q", url, want)
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", host)
	}
}
