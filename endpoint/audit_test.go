package endpoint_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// auditing is sales with an audit queue and a behavior that changes what handlers see.
func auditing(broker transport.Transport, handlers ...endpoint.Handler) endpoint.Config {
	cfg := harness.Sales(broker, handlers...)
	cfg.AuditQueue = "audit"
	cfg.Pipeline.Receive.Use("change", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
		return func(ctx context.Context, r *pipeline.Receive) error {
			r.Headers.Set("Changed", "yes")
			r.Body = []byte(`{"ID":"changed"}`)
			return next(ctx, r)
		}
	})
	return cfg
}

// The audit queue gets the message as received, with the times and the place of processing.
func TestAnAuditCopyHasTheMessageTimesAndPlace(t *testing.T) {
	modes := []endpoint.TransactionMode{endpoint.ReceiveOnly, endpoint.None, endpoint.SendsAtomicWithReceive}
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := auditing(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
					time.Sleep(3 * time.Second)
					if mode == endpoint.SendsAtomicWithReceive {
						if err := inmemory.OnCommit(ctx, s, func() {}); err != nil {
							return err
						}
					}
					return s.Send(ctx, harness.ShipOrder(m))
				}))
				cfg.Transactions, cfg.Instance = mode, "one"
				harness.Start(t, cfg)
				received := native("Shop.PlaceOrder", "application/json", `{"ID": "7"}`)
				received.Headers.Set(header.TimeToBeReceived, "00:00:10")
				began := time.Now()
				if err := broker.Put("sales", received); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				audited := broker.Messages("audit")
				if len(audited) != 1 || len(broker.Messages("shipping")) != 1 {
					t.Fatalf("%d audited, %d sent", len(audited), len(broker.Messages("shipping")))
				}
				if audited[0].ID != "n1" || string(audited[0].Body) != `{"ID": "7"}` {
					t.Errorf("audited %q %s", audited[0].ID, audited[0].Body)
				}
				want := received.Headers.Clone()
				want.Set(header.ProcessingStarted, header.FormatTime(began))
				want.Set(header.ProcessingEnded, header.FormatTime(began.Add(3*time.Second)))
				want.Set(header.ProcessingEndpoint, "sales")
				got := audited[0].Headers.Clone()
				want.Set(header.HostDisplayName, got.Get(header.ProcessingMachine))
				for _, name := range []string{header.ProcessingMachine, header.HostID} {
					if got.Get(name) == "" {
						t.Errorf("there is no %s", name)
					}
					got.Del(name)
				}
				want.Set(header.MessageID, "n1")
				if diff := cmp.Diff(string(want.AppendJSON(nil)), string(got.AppendJSON(nil))); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestWhatFailsIsNotAudited(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := auditing(broker, failing(&harness.Tally{}))
		cfg.Recoverability.Delayed = 1
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Hour)
		if len(broker.Messages("audit")) != 0 || len(broker.Messages("error")) != 1 {
			t.Errorf("%d audited, %d in the error queue", len(broker.Messages("audit")), len(broker.Messages("error")))
		}
	})
}

// A message is audited even if a behavior withheld its messages.
func TestWithheldSendsAreAudited(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := auditing(broker, shipping())
		cfg.Pipeline.Dispatch = onDispatch(func(func() error) error { return nil })
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if len(broker.Messages("audit")) != 1 || len(broker.Messages("shipping")) != 0 {
			t.Errorf("%d audited, %d sent", len(broker.Messages("audit")), len(broker.Messages("shipping")))
		}
	})
}

// A message that cannot be audited fails, and none of its messages are sent.
func TestAMessageThatCannotBeAuditedFails(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "audit" {
				return errNo
			}
			return nil
		}
		cfg := auditing(broker, shipping())
		cfg.Recoverability = once
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if len(broker.Messages("shipping")) != 0 || len(broker.Messages("error")) != 1 {
			t.Errorf("%d sent, %d in the error queue", len(broker.Messages("shipping")), len(broker.Messages("error")))
		}
	})
}

// New refuses an audit queue that is the endpoint's queue or the error queue.
func TestTheAuditQueueIsAQueueOfItsOwn(t *testing.T) {
	for name, want := range map[string]string{
		"sales": "would come back at once", "error": "AuditQueue and an error queue of Recoverability are both",
		"sales-a": "the queue of the instance and AuditQueue are both",
	} {
		cfg := harness.Sales(&inmemory.Transport{})
		cfg.AuditQueue, cfg.Instance, cfg.InstanceQueue = name, "a", true
		if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New says %v, want %q", err, want)
		}
	}
	cfg := harness.Sales(&inmemory.Transport{})
	cfg.AuditQueue, cfg.SendOnly = "audit", true
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "processes no messages") {
		t.Errorf("New says %v", err)
	}
}

func TestAuditCopiesExpireWhereThatIsConfigured(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := auditing(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil }))
		cfg.AuditExpireAfter = time.Hour
		e := harness.Start(t, cfg)
		e.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.ExpireAfter(time.Minute))
		time.Sleep(time.Hour - time.Second)
		if n := len(broker.Messages("audit")); n != 1 {
			t.Errorf("%d copies before the hour is over, want 1", n)
		}
		time.Sleep(2 * time.Second)
		if n := len(broker.Messages("audit")); n != 0 {
			t.Errorf("%d copies when the hour is over, want none", n)
		}
	})
}

// New refuses an expiry of audit copies that makes no sense.
func TestAnImpossibleAuditExpiryIsRefused(t *testing.T) {
	for want, change := range map[string]func(*endpoint.Config){
		"AuditExpireAfter is negative":  func(c *endpoint.Config) { c.AuditQueue, c.AuditExpireAfter = "audit", -1 },
		"there are no copies to expire": func(c *endpoint.Config) { c.AuditExpireAfter = time.Hour },
	} {
		cfg := harness.Sales(&inmemory.Transport{})
		change(&cfg)
		if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New says %v, want %q", err, want)
		}
	}
}
