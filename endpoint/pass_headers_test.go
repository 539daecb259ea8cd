package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// receiptHeaders are headers that a received message may have, and with which it reaches its
// handlers.
var receiptHeaders = []string{
	header.Retries, header.RetriesTimestamp, header.FirstLevelRetries, header.HoldfastFirstFailure, header.HoldfastUsedRetries,
	header.HoldfastThrottledFailures, header.HoldfastThrottledSince, header.HoldfastHistory, header.HoldfastRetryPolicy,
	header.HoldfastRetryAttempt, header.HoldfastRetryLastError, header.HoldfastReturns, header.HoldfastReturnOutcome,
	header.SagaID, header.SagaType, header.IsSagaTimeout, header.HoldfastSagaTimeout, header.HoldfastJob, header.HoldfastJobSchedule,
	header.HoldfastJobDue, header.HoldfastJobCorrelation, header.FailedQ, header.TimeOfFailure, header.ExceptionType, header.ExceptionMessage,
	header.ExceptionData + "Key", header.ProcessingStarted, header.ProcessingEnded, header.ProcessingMachine, header.ProcessingEndpoint,
	header.HostID, header.HostDisplayName, header.HoldfastFaultClass, header.HoldfastFaultHistory, header.HoldfastAttempts,
	header.InvokedSagas, header.SagaStateChange, header.RetryAcknowledged, header.RetrySuccessful, header.HoldfastQuarantineQueue,
}

// sendingHeaders describe the body of a message, or how it was sent.
var sendingHeaders = []string{
	header.MessageID, header.RelatedTo, header.MessageIntent, header.OriginatingEndpoint, header.OriginatingMachine, header.OriginatingHostID,
	header.ContentType, header.EnclosedMessageTypes, header.TimeSent, header.DeliverAt, header.TimeToBeReceived,
}

// skippedHeaders are other headers that belong to the received message alone.
var skippedHeaders = []string{
	header.ReplyToAddress, header.OriginatingSagaID, header.OriginatingSagaType, header.Version, header.IsDeferredMessage, header.StartNewTrace,
}

// A message that is sent with all headers of the handled one differs in these of the user's alone
// from one that is sent without.
func TestPassedHeadersAreThoseOfTheUser(t *testing.T) {
	for name, state := range map[string]func(p *passing){
		"first delivery":  func(p *passing) { p.put(wire("m")) },
		"immediate retry": func(p *passing) { p.cfg.Recoverability.Immediate, p.fail = 1, 1; p.put(wire("m")) },
		"delayed retry":   func(p *passing) { p.cfg.Recoverability.Delayed, p.fail = 2, 2; p.put(wire("m")) },
		"returned": func(p *passing) {
			p.fail = 1
			p.put(wire("m"))
			failed := p.broker.Messages("error")[0]
			failed.Headers = fault.ReturnHeaders(failed.Headers)
			p.put(failed)
		},
		"audited": func(p *passing) {
			p.cfg.AuditQueue = "audit"
			p.put(wire("m"))
			p.clear()
			p.put(p.broker.Messages("audit")[0])
		},
		"sent later": func(p *passing) {
			p.start()
			p.r.MustSend(harness.PlaceOrder{}, endpoint.Header("Tenant", "acme"), endpoint.After(time.Minute), endpoint.ExpireAfter(time.Hour))
		},
		"any headers": func(p *passing) {
			for seed := range 50 {
				random, m := rand.New(rand.NewPCG(uint64(seed), 1)), wire(fmt.Sprint(seed))
				for _, names := range [][]string{receiptHeaders, sendingHeaders[1:], skippedHeaders} {
					for _, n := range names {
						if m.Headers.Get(n) == "" && n != header.ContentType && random.IntN(2) == 0 {
							m.Headers.Set(n, [...]string{"True", "2", "text"}[random.IntN(3)])
						}
					}
				}
				p.put(m)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				p := &passing{t: t, broker: broker, cfg: harness.Sales(broker)}
				p.cfg.Recoverability = once
				state(p)
				time.Sleep(time.Hour)
				synctest.Wait()
				p.check()
			})
		})
	}
}

// passing is an endpoint whose handler passes the headers of its messages on.
type passing struct {
	t      *testing.T
	broker *inmemory.Transport
	cfg    endpoint.Config
	fail   int // the first attempts
	r      *harness.Running
	pairs  int
}

func (p *passing) start() {
	if p.r != nil {
		return
	}
	for _, queue := range []string{"shipping", "accepted", "events"} {
		p.broker.CreateQueues(queue)
	}
	p.cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
		if p.fail--; p.fail >= 0 {
			return errNo
		}
		p.pairs++
		all := endpoint.Headers(s.Headers())
		return errors.Join(
			s.Send(ctx, harness.ShipOrder(m)), s.Send(ctx, harness.ShipOrder(m), all),
			s.Reply(ctx, harness.OrderAccepted(m), endpoint.To("accepted")), s.Reply(ctx, harness.OrderAccepted(m), endpoint.To("accepted"), all),
			s.Publish(ctx, harness.OrderPlaced(m)), s.Publish(ctx, harness.OrderPlaced(m), all),
		)
	})}
	events := harness.Sales(p.broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.OrderPlaced) error { return errNo }))
	events.Name, events.Recoverability = "events", recoverability.Config{ErrorQueue: "happened", Immediate: recoverability.None, Delayed: recoverability.None}
	harness.Start(p.t, events)
	p.r = harness.Start(p.t, p.cfg)
}

// put delivers a message with a header of the user's.
func (p *passing) put(m *transport.Message) {
	p.t.Helper()
	p.start()
	m.Headers.Set("Tenant", "acme")
	m.Headers.Set(header.ConversationID, "conversation")
	if err := p.broker.Put("sales", m); err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

// clear forgets the messages that were sent so far.
func (p *passing) clear() { p.pairs = 0 }

// check compares the messages of each pair, and receives the passed one.
func (p *passing) check() {
	if p.pairs == 0 {
		p.t.Fatal("no message was handled")
	}
	for _, queue := range []string{"shipping", "accepted"} {
		sent := p.broker.Messages(queue)
		for i := len(sent) - 2*p.pairs; i < len(sent); i += 2 {
			p.compare(sent[i], sent[i+1])
		}
	}
	types := map[string]int{}
	for _, m := range p.broker.Messages("happened") {
		types[m.Headers.Get(header.EnclosedMessageTypes)+" "+m.Headers.Get("Tenant")]++
	}
	if types["Shop.OrderPlaced, Holdfast;Shop.IOrderEvent acme"] != types["Shop.OrderPlaced, Holdfast;Shop.IOrderEvent "] || len(types) != 2 {
		p.t.Errorf("events have arrived as %v", types)
	}
	var arrived harness.Tally
	shipping := harness.Sales(p.broker, heard(&arrived, func(m harness.ShipOrder) string { return m.ID }))
	shipping.Name, shipping.Recoverability = "shipping", once
	before := len(p.broker.Messages("error"))
	waiting := len(p.broker.Messages("shipping"))
	harness.Start(p.t, shipping)
	synctest.Wait()
	if n, failed := len(arrived.List()), len(p.broker.Messages("error"))-before; n != waiting || failed != 0 {
		p.t.Errorf("%d of %d commands have arrived, and %d have failed", n, waiting, failed)
	}
}

func (p *passing) compare(plain, passed *transport.Message) {
	p.t.Helper()
	want, got := maps.Collect(plain.Headers.All()), maps.Collect(passed.Headers.All())
	want["Tenant"] = "acme"
	if want[header.MessageID] == got[header.MessageID] || got[header.MessageID] != passed.ID {
		p.t.Errorf("the id of the new message is %q, and in its header %q", passed.ID, got[header.MessageID])
	}
	delete(want, header.MessageID)
	delete(got, header.MessageID)
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Errorf("headers without and with those that are passed on:\n%s", diff)
	}
}

// The endpoint's values of headers that describe the sending of a message replace the caller's.
func TestHeadersOfTheSendingAreTheEndpoints(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			err := s.Send(ctx, harness.ShipOrder(m))
			for _, name := range sendingHeaders {
				err = errors.Join(err, s.Send(ctx, harness.ShipOrder(m), endpoint.Header(name, "wrong")))
			}
			return err
		}))
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		sent := broker.Messages("shipping")
		if len(sent) != 1+len(sendingHeaders) {
			t.Fatalf("%d messages", len(sent))
		}
		for i, name := range sendingHeaders {
			want, _ := sent[0].Headers.Lookup(name)
			if name == header.MessageID {
				want = sent[i+1].ID
			}
			if got, _ := sent[i+1].Headers.Lookup(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	})
}

// A behavior may change each header of the encoded message.
func TestABehaviorMayChangeHeadersOfTheSending(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker)
		cfg.Pipeline.Outgoing.Use("change", func(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
			return func(ctx context.Context, out *pipeline.Outgoing) error {
				err := next(ctx, out)
				out.Operation.Message.Headers.Set(header.ContentType, "text/other")
				return err
			}
		})
		harness.Start(t, cfg).MustSend(harness.ShipOrder{})
		if got := broker.Messages("shipping")[0].Headers.Get(header.ContentType); got != "text/other" {
			t.Errorf("content type %q", got)
		}
	})
}

func TestHeaderRefusesHeadersOfAReceipt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := harness.Start(t, harness.Sales(broker))
		for _, name := range receiptHeaders {
			err := r.Send(t.Context(), harness.ShipOrder{}, endpoint.Header(name, "1"))
			perr := r.Publish(t.Context(), harness.OrderPlaced{}, endpoint.Header(name, "1"))
			if !errors.Is(err, endpoint.ErrReceiptHeader) || !errors.Is(perr, endpoint.ErrReceiptHeader) {
				t.Errorf("%s: %v, %v", name, err, perr)
			}
		}
		if n := len(broker.Messages("shipping")); n != 0 {
			t.Errorf("%d messages were sent", n)
		}
	})
}
