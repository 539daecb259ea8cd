package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var errNoRight = errors.New("403: no right")

// in each of these a message is completed in another way.
var completions = map[string]func(*endpoint.Config, *inmemory.Transport){
	"one unit":    func(*endpoint.Config, *inmemory.Transport) {},
	"in order":    func(_ *endpoint.Config, b *inmemory.Transport) { b.Without = inmemory.Completer | inmemory.Transactor },
	"before":      func(c *endpoint.Config, _ *inmemory.Transport) { c.Transactions = endpoint.None },
	"transaction": func(c *endpoint.Config, _ *inmemory.Transport) { c.Transactions = endpoint.SendsAtomicWithReceive },
}

// beginning returns a handler that begins a transaction where there is one, and sends.
func beginning(calls *harness.Tally) endpoint.Handler {
	return endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
		calls.Add(fmt.Sprint(s.Attempt().N))
		_ = inmemory.OnCommit(ctx, s, func() {}) // fails in other modes
		return s.Send(ctx, harness.ShipOrder{})
	})
}

// With the right to send to a queue, and not to look at it, the acknowledgement is sent.
func TestAnAcknowledgementNeedsNoInspection(t *testing.T) {
	for name, change := range completions {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.CreateQueues("acks")
				broker.Fail = func(verb, object string) error {
					if verb == "Inspect" && object == "acks" {
						return errNoRight
					}
					return nil
				}
				var calls harness.Tally
				cfg := harness.Sales(broker, beginning(&calls))
				cfg.AuditQueue = "audit"
				change(&cfg, broker)
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, returned()...)
				synctest.Wait()
				audited := broker.Messages("audit")
				if len(broker.Messages("acks")) != 1 || len(audited) != 1 || audited[0].Headers.Get(header.RetryAcknowledged) == "" || len(calls.List()) != 1 {
					t.Errorf("%d acknowledgements, audited %v, calls %q", len(broker.Messages("acks")), audited, calls.List())
				}
			})
		})
	}
}

// A message that was handled does not fail for the acknowledgement, and the audit copy says that
// none was sent.
func TestAMissingAcknowledgementQueueFailsNothing(t *testing.T) {
	for name, change := range completions {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Fail = func(verb, object string) error {
					switch {
					case object != "acks":
						return nil
					case verb == "Inspect":
						return errNoRight
					}
					return fmt.Errorf("queue %q: %w", object, transport.ErrNoQueue)
				}
				var calls harness.Tally
				cfg := harness.Sales(broker, beginning(&calls))
				cfg.AuditQueue, cfg.Recoverability = "audit", once
				change(&cfg, broker)
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, returned()...)
				time.Sleep(time.Minute)
				want := 1
				if name == "transaction" { // it was over, and the attempt is repeated, without a retry
					want = 2
				}
				if all := calls.List(); len(all) != want || count(all, "1") != want {
					t.Errorf("handled at attempts %q", all)
				}
				audited := broker.Messages("audit")
				if len(audited) != 1 || audited[0].Headers.Get(header.RetryAcknowledged) != "" {
					t.Errorf("audited %v", audited)
				}
				if n := len(broker.Messages("shipping")); n != 1 || len(broker.Messages("error")) != 0 {
					t.Errorf("%d sent, %d failed", n, len(broker.Messages("error")))
				}
			})
		})
	}
}

// partly sends to a queue that exists, and to one that does not.
func partly() endpoint.Handler {
	return endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
		return errors.Join(s.Send(ctx, harness.ShipOrder{}), s.Send(ctx, harness.ShipOrder{}, endpoint.To("nowhere")))
	})
}

// An attempt that sent only a part of its messages is neither audited nor acknowledged.
func TestAPartlySentAttemptIsNotAudited(t *testing.T) {
	for name, change := range completions {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.CreateQueues("acks")
				cfg := harness.Sales(broker, partly())
				cfg.AuditQueue, cfg.Recoverability = "audit", once
				change(&cfg, broker)
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, returned()...)
				synctest.Wait()
				if n := len(broker.Messages("audit")) + len(broker.Messages("acks")); n != 0 {
					t.Errorf("%d copies and acknowledgements of an attempt that failed", n)
				}
				if n := len(broker.Messages("error")); n != 1 {
					t.Errorf("%d messages in the error queue", n)
				}
				part := 0
				if name == "in order" || name == "before" {
					part = 1
				}
				if n := len(broker.Messages("shipping")); n != part {
					t.Errorf("%d sent, want %d: the test shows nothing", n, part)
				}
			})
		})
	}
}

// dispatches counts the calls of Dispatch with the copies and messages of handlers.
type dispatches struct {
	*inmemory.Transport
	calls atomic.Int32
}

func (b *dispatches) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &countedConn{conn, conn.(transport.Installer), conn.(transport.Subscriber), b}, nil
}

type countedConn struct {
	transport.Conn
	transport.Installer
	transport.Subscriber
	b *dispatches
}

func (c *countedConn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	c.b.calls.Add(1)
	return c.Conn.Dispatch(ctx, ops)
}

// The order costs a call only where there is something to put in order.
func TestAnAuditCopyRarelyCostsACall(t *testing.T) {
	silent := endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil })
	for name, test := range map[string]struct {
		handler endpoint.Handler
		audit   string
		without inmemory.Capability
		want    int32
	}{
		"messages":                       {shipping(), "", inmemory.Completer | inmemory.Transactor, 1},
		"an audit copy":                  {silent, "audit", inmemory.Completer | inmemory.Transactor, 1},
		"messages and an audit copy":     {shipping(), "audit", inmemory.Completer | inmemory.Transactor, 2},
		"nothing":                        {silent, "", inmemory.Completer | inmemory.Transactor, 0},
		"messages and a copy, as a unit": {shipping(), "audit", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Without = test.without
				counted := &dispatches{Transport: broker}
				cfg := harness.Sales(counted, test.handler)
				cfg.AuditQueue = test.audit
				harness.Start(t, cfg)
				if err := broker.Put("sales", native("Shop.PlaceOrder", "application/json", `{}`)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if len(broker.Messages("sales")) != 0 {
					t.Error("it was not handled")
				}
				if got := counted.calls.Load(); got != test.want {
					t.Errorf("%d calls, want %d", got, test.want)
				}
			})
		})
	}
}

// Nothing is lost when the copy is refused after the others were sent: the message is handled
// again.
func TestARefusedAuditCopyRepeatsTheMessage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Completer | inmemory.Transactor
		var refusals atomic.Int32
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "audit" && refusals.Add(1) == 1 {
				return errNo
			}
			return nil
		}
		var told harness.Tally
		cfg := harness.Sales(broker, shipping())
		cfg.AuditQueue, cfg.Notify = "audit", telling(&told)
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if len(broker.Messages("audit")) != 1 || len(broker.Messages("shipping")) != 2 || len(told.List()) != 1 {
			t.Errorf("%d audited, %d sent, told %q", len(broker.Messages("audit")), len(broker.Messages("shipping")), told.List())
		}
	})
}

// The messages and writes of Config.OnFinalFailure are not lost for an acknowledgement that has no
// queue.
func TestADiscardWithoutAnAcknowledgementQueueSends(t *testing.T) {
	for name, change := range completions {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Fail = func(verb, object string) error {
					switch {
					case object != "acks":
						return nil
					case verb == "Inspect":
						return errNoRight
					}
					return fmt.Errorf("queue %q: %w", object, transport.ErrNoQueue)
				}
				cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
					return errors.New("no")
				}))
				cfg.Recoverability = once
				cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action { return recoverability.Discard{Reason: "test"} }
				cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
					_ = inmemory.OnCommit(ctx, s, func() {}) // fails in other modes
					return s.Send(ctx, harness.ShipOrder{})
				}
				change(&cfg, broker)
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, returned()...)
				time.Sleep(time.Hour)
				if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 1 || failed != 0 {
					t.Errorf("%d sent, %d failed", sent, failed)
				}
			})
		})
	}
}
