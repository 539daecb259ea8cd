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
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// addressed is a transport whose queues have addresses: "ns/" and the name.
type addressed struct{ *inmemory.Transport }

func (a addressed) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	a.Without |= inmemory.Completer
	conn, err := a.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return addressedConn{
		conn, conn.(transport.Installer), conn.(transport.Subscriber), conn.(transport.Inspector),
	}, nil
}

type addressedConn struct {
	transport.Conn
	transport.Installer
	transport.Subscriber
	transport.Inspector
}

const ns = "ns/"

func (addressedConn) Address(queue string) string     { return ns + strings.TrimPrefix(queue, ns) }
func (addressedConn) ShortName(address string) string { return strings.TrimPrefix(address, ns) }

func (c addressedConn) Install(ctx context.Context, plan transport.Plan) error {
	for i := range plan.Queues {
		plan.Queues[i].Name = c.ShortName(plan.Queues[i].Name)
	}
	return c.Installer.Install(ctx, plan)
}

func (c addressedConn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	for i := range ops {
		ops[i].Queue = c.ShortName(ops[i].Queue)
	}
	return c.Conn.Dispatch(ctx, ops)
}

func (c addressedConn) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	for i := range queues {
		queues[i] = c.ShortName(queues[i])
	}
	return c.Inspector.Inspect(ctx, queues...)
}

func TestOthersGetTheAddressesOfTheEndpointsQueues(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var seen, told harness.Tally
		cfg := harness.Sales(addressed{broker}, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			return errNo
		}))
		cfg.Recoverability = once
		cfg.Instance, cfg.InstanceQueue, cfg.Notify = "one", true, telling(&told)
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			seen.Add(f.Queue)
			return f.Decide()
		}
		cfg.Pipeline.Receive.Use("seen", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, r *pipeline.Receive) error {
				seen.Add(r.Queue)
				return next(ctx, r)
			}
		})
		r := harness.Start(t, cfg)
		r.MustSend(harness.ShipOrder{})
		r.MustSend(harness.ShipOrder{}, endpoint.ReplyTo("other"))
		r.MustSend(harness.ShipOrder{}, endpoint.ReplyTo("ns/other"))
		r.MustSend(harness.ShipOrder{}, endpoint.ReplyToThisInstance())
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		var replyTo []string
		for _, m := range broker.Messages("shipping") {
			replyTo = append(replyTo, m.Headers.Get(header.ReplyToAddress))
		}
		if diff := cmp.Diff([]string{"ns/sales", "ns/other", "ns/other", "ns/sales-one"}, replyTo); diff != "" {
			t.Errorf("reply-to addresses (-want +got):\n%s", diff)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get(header.FailedQ) != "ns/sales" {
			t.Errorf("failed %v", failed)
		}
		if diff := cmp.Diff([]string{"sales", "sales"}, seen.List()); diff != "" {
			t.Errorf("the program saw (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"moved_to_error to error"}, told.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAllFormsOfAnAddressAreOneQueueForTheEndpoint(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var sent, told, attempted harness.Tally
		cfg := harness.Sales(addressed{broker}, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			switch attempted.Add(o.ID); o.ID {
			case "reply":
				return s.Reply(ctx, harness.ShipOrder{})
			case "forward":
				return s.Forward(ctx, "ns/other")
			}
			return errNo
		}))
		cfg.Recoverability = recoverability.Config{ErrorQueue: "ns/error"}
		cfg.AuditQueue = "ns/shipping"
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			return recoverability.MoveToError{Queue: f.MessageID}
		}
		cfg.Notify = telling(&told)
		cfg.Pipeline.Dispatch.Use("sent", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
			return func(ctx context.Context, d *pipeline.Dispatch) error {
				for _, op := range d.Operations {
					sent.Add(op.Queue)
				}
				return next(ctx, d)
			}
		})
		r := harness.Start(t, cfg)
		for _, id := range []string{"ns/other", "ns/sales", "sales", "ns/sales.quarantine", ""} {
			delivered(t, broker, "sales", &transport.Message{
				ID: id, Body: []byte("{}"), Headers: header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"}),
			}, 0)
			time.Sleep(time.Second)
		}
		want := []string{
			"moved_to_error to other", // not what is refused: the endpoint would receive it again
			"fallback_taken move_to_error", "moved_to_error to error",
			"fallback_taken move_to_error", "moved_to_error to error",
			"fallback_taken move_to_error", "moved_to_error to error", "moved_to_error to error",
		}
		if diff := cmp.Diff(want, told.List()); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}
		reply := wire("reply")
		reply.Headers.Set(header.ReplyToAddress, "ns/other")
		delivered(t, broker, "sales", reply, 0)
		delivered(t, broker, "sales", wire("forward"), 0)
		r.MustSend(harness.ShipOrder{}, endpoint.To("ns/other"))
		time.Sleep(time.Second)
		if diff := cmp.Diff([]string{"other", "other", "other"}, sent.List()); diff != "" {
			t.Errorf("sent to (-want +got):\n%s", diff)
		}
		if err := r.Pause(t.Context(), "ns/sales"); err != nil {
			t.Error(err)
		}
		delivered(t, broker, "sales", wire("paused"), 0)
		time.Sleep(time.Minute)
		before := attempted.List()
		if err := r.Resume(t.Context(), "sales"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if diff := cmp.Diff(append(before, "paused"), attempted.List()); diff != "" {
			t.Errorf("handled after the pause (-want +got):\n%s", diff)
		}
	})
}

func TestTheQuarantineKnowsAQueueByEachOfItsForms(t *testing.T) {
	for _, form := range []string{"sales", "ns/sales", ""} { // the first as versions before addresses wrote it
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var seen harness.Tally
			cfg := harness.Sales(addressed{broker}, failing(&harness.Tally{}))
			cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
				seen.Add(f.Queue)
				return recoverability.MoveToError{}
			}
			if form == "" {
				delivered(t, broker, "sales", wire("suspect"), 6)
			} else {
				m := wire("suspect")
				m.Headers = fault.QuarantineHeaders(m.Headers, form, 6)
				delivered(t, broker, "sales.quarantine", m, 0)
			}
			harness.Start(t, cfg)
			time.Sleep(time.Minute)
			failed := broker.Messages("error")
			if len(failed) != 1 || failed[0].Headers.Get(header.FailedQ) != "ns/sales" {
				t.Errorf("%q: failed %v", form, failed)
			}
			if diff := cmp.Diff([]string{"sales"}, seen.List()); diff != "" {
				t.Errorf("%q: the policy saw (-want +got):\n%s", form, diff)
			}
		})
	}
}

func TestOneQueueInTwoFormsIsAMistakeAtTheStart(t *testing.T) {
	for want, change := range map[string]func(*endpoint.Config){
		"Name and an error queue":       func(c *endpoint.Config) { c.Recoverability.ErrorQueue = "ns/sales" },
		"Name and AuditQueue":           func(c *endpoint.Config) { c.AuditQueue = "ns/sales" },
		"AuditQueue and an error queue": func(c *endpoint.Config) { c.AuditQueue = "ns/error" },
		"is the endpoint's quarantine":  func(c *endpoint.Config) { c.AuditQueue = "ns/sales.quarantine" },
		"the queue of the instance": func(c *endpoint.Config) {
			c.Instance, c.InstanceQueue = "one", true
			c.Recoverability.Rules = []recoverability.Rule{{Action: recoverability.MoveToError{Queue: "ns/sales-one"}}}
		},
	} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			cfg := harness.Sales(addressed{broker})
			change(&cfg)
			e, err := endpoint.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Run returned %v, want %q", err, want)
			}
		})
	}
}
