package acceptance_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// returner is the part of ServiceControl that returns messages of an error queue, on one broker.
type returner struct {
	transport.Transport
	// address is that of a queue as NServiceBus writes it.
	address func(queue string) string
	// put sends a message to an address as the transport of NServiceBus does, which takes it for
	// its own of that form.
	put func(t *testing.T, address, nativeID string, headers map[string]string, body []byte)

	acknowledged []string // ids
}

const peer, heir, errorQueue = "Go.Peer", "Go.Heir", "the.error"

// returned is a message in a handler.
type returned struct{ endpoint, id, relatedTo string }

func TestReturnsOfServiceControl(t *testing.T) {
	onBrokers(t, []string{"quorum", "postgres in a schema"}, []string{
		"postgres", "sqs", "sqs with a prefix", "servicebus", "servicebus with a hierarchy", "servicebus with a hierarchy that queues begin with",
	}, func(t *testing.T, name string) {
		sc := returners[name](t)
		handled := make(chan returned, 10)
		a := start(t, sc.endpoint(peer, handled))
		start(t, sc.endpoint(heir, handled))
		fail := func() *transport.Message {
			a.send(placeOrder{ID: "poison"}, endpoint.To(peer))
			failed := sc.take(t)
			if got := failed.Headers.Get(header.FailedQ); got != sc.address(peer) {
				t.Errorf("failed in %s, want %s", got, sc.address(peer))
			}
			return failed
		}

		same := fail()
		sc.giveBack(t, same, same.Headers.Get(header.FailedQ), "u-same")
		expectReturned(t, handled, returned{peer, same.ID, same.ID})

		redirected := fail()
		sc.giveBack(t, redirected, sc.address(heir), "u-redirected")
		expectReturned(t, handled, returned{heir, redirected.ID, redirected.ID})

		edited := fail()
		edit := edited.Headers.Clone()
		edit.Set(header.MessageID, "edited-"+edited.ID)
		edit.Set("ServiceControl.EditOf", "u-edited")
		edited.Headers = edit
		sc.giveBack(t, edited, edited.Headers.Get(header.FailedQ), "")
		expectReturned(t, handled, returned{peer, "edited-" + edited.ID, "edited-" + edited.ID})

		fail() // after which no acknowledgement is to come
		slices.Sort(sc.acknowledged)
		if diff := cmp.Diff([]string{"u-redirected", "u-same"}, sc.acknowledged); diff != "" {
			t.Errorf("acknowledged (-want +got):\n%s", diff)
		}
	})
}

// endpoint is one that fails over a message until ServiceControl returns it, and reports what was
// sent by its handler.
func (sc *returner) endpoint(name string, handled chan<- returned) endpoint.Config {
	cfg := sales(sc, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
		if s.Header(header.RetryAcknowledgement) == "" {
			return errNo
		}
		return s.Send(ctx, shipOrder{ID: s.MessageID()}, endpoint.To(name))
	}), endpoint.Handle(func(_ context.Context, s *endpoint.Session, o shipOrder) error {
		handled <- returned{name, o.ID, s.Header(header.RelatedTo)}
		return nil
	}))
	cfg.Name, cfg.Routes = name, nil
	cfg.Recoverability = recoverability.Config{
		ErrorQueue: errorQueue, Immediate: recoverability.None, Delayed: recoverability.None,
	}
	return cfg
}

func expectReturned(t *testing.T, handled <-chan returned, want returned) {
	t.Helper()
	select {
	case got := <-handled:
		if got != want {
			t.Errorf("handled %+v, want %+v", got, want)
		}
	case <-time.After(timeLimit):
		t.Fatalf("not handled: %+v", want)
	}
}

// giveBack returns a message as ServiceControl does (servicecontrol.md 1.3): without the headers of
// the failure, under a native id of its own, with the address of its error queue, and unless it was
// edited with the failure's id.
func (sc *returner) giveBack(t *testing.T, failed *transport.Message, address, uniqueID string) {
	t.Helper()
	headers := map[string]string{}
	for name, value := range failed.Headers.All() {
		taken := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if !slices.ContainsFunc([]string{
			"NServiceBus.Retries", "NServiceBus.FailedQ", "NServiceBus.TimeOfFailure", "NServiceBus.ExceptionInfo.",
		}, taken) {
			headers[name] = value
		}
	}
	headers[header.RetryAcknowledgement] = sc.address(errorQueue)
	if uniqueID != "" {
		headers[header.RetryUniqueID] = uniqueID
	}
	sc.put(t, address, "FailedMessages/"+brokertest.Name(t, "id"), headers, failed.Body)
}

// take removes the next failed message from the error queue. As ServiceControl's ingestion does, it
// takes acknowledgements out beside it.
func (sc *returner) take(t *testing.T) *transport.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	conn, err := sc.Open(ctx, transport.Env{})
	must(t, err)
	defer conn.Close()
	r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: errorQueue})
	must(t, err)
	r.Window(1)
	for {
		ds, err := r.Receive(ctx, 1)
		must(t, err)
		m := ds[0].Message()
		must(t, ds[0].Complete(ctx))
		if m.Headers.Get(header.RetrySuccessful) == "" {
			return m
		}
		if m.Headers.Get(header.ControlMessage) == "" || len(m.Body) > 0 {
			t.Errorf("an acknowledgement that is none: %s", m.Headers.AppendJSON(nil))
		}
		sc.acknowledged = append(sc.acknowledged, m.Headers.Get(header.RetryUniqueID))
	}
}

// hostile are addresses that no queue of any broker has.
var hostile = []string{
	`"`, `"a`, `""."a"`, `"public"."a".b`, `"a"."b"."c"`, "@", "a@", "a@[", "[", "a@[dbo]@", " ", "ns/", "/", "a?b\x01", "Größe ?",
	strings.Repeat("x", 300), `"` + strings.Repeat("y", 70) + `"."z"`,
}

// Addresses in headers are text of anybody's.
func TestMalformedAddresses(t *testing.T) {
	onBrokers(t, []string{"postgres"}, []string{
		"quorum", "postgres in a schema", "sqs", "sqs with a prefix", "servicebus", "servicebus with a hierarchy", "servicebus with a hierarchy that queues begin with",
	}, func(t *testing.T, name string) {
		sc := returners[name](t)
		cfg := sc.endpoint(peer, nil)
		acked := make(chan string, len(hostile))
		cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			if s.Header(header.RetryAcknowledgement) == "" {
				return s.Reply(ctx, orderAccepted{})
			}
			acked <- o.ID
			return nil
		})}
		start(t, cfg)
		for i, address := range hostile {
			body, err := json.Marshal(placeOrder{ID: address})
			must(t, err)
			id := brokertest.Name(t, "id")
			headers := map[string]string{
				header.MessageID: id, header.EnclosedMessageTypes: "Shop.PlaceOrder", header.ReplyToAddress: address, header.FailedQ: address,
			}
			sc.put(t, sc.address(peer), id, headers, body)
			failed := sc.take(t)
			if failed.ID != id || failed.Headers.Get(header.FailedQ) != sc.address(peer) {
				t.Errorf("%.40q: in the error queue is %s of %s", address, failed.ID, failed.Headers.Get(header.FailedQ))
			}
			id = brokertest.Name(t, "id")
			headers = map[string]string{
				header.MessageID: id, header.EnclosedMessageTypes: "Shop.PlaceOrder",
				header.RetryAcknowledgement: address, header.RetryUniqueID: "u",
			}
			sc.put(t, sc.address(peer), id, headers, body)
			select {
			case <-acked:
			case <-time.After(timeLimit):
				t.Fatalf("%d: %.40q: the returned message was not handled", i, address)
			}
		}
		if len(sc.acknowledged) > 0 {
			t.Errorf("acknowledged %q", sc.acknowledged)
		}
	})
}
