package endpoint_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestHealthSaysHowAnEndpointLivesAndEnds(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		wait := make(chan struct{})
		var opening atomic.Bool
		opening.Store(true)
		broker.Fail = func(verb, _ string) error {
			if verb == "Open" && opening.Load() {
				<-wait
			}
			return nil
		}
		e, err := endpoint.New(harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			time.Sleep(10 * time.Second)
			return nil
		})))
		if err != nil {
			t.Fatal(err)
		}
		expect := func(live bool, reasons ...string) {
			t.Helper()
			synctest.Wait()
			want := endpoint.Health{Endpoint: "sales", Live: live, Ready: len(reasons) == 0, Reasons: reasons}
			got := e.Health()
			got.Queues = nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		}
		expect(true, "Run has not been called")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		expect(true, "Run is starting")
		close(wait)
		expect(true)
		if err := e.Send(ctx, harness.PlaceOrder{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if diff := cmp.Diff([]endpoint.QueueHealth{{Queue: "sales", Handling: 1}}, e.Health().Queues, cmpopts.IgnoreFields(endpoint.QueueHealth{}, "Bytes")); diff != "" {
			t.Error(diff)
		}
		cancel()
		expect(true, "the endpoint is stopping")
		if err := <-done; err != nil {
			t.Error(err)
		}
		expect(false, "Run has returned")
	})
}

func TestAnEndpointIsNotReadyWhileTheBrokerIsAway(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var away atomic.Bool
		broker.Fail = func(verb, _ string) error {
			if verb == "Receive" && away.Load() {
				return errNo
			}
			return nil
		}
		r := harness.Start(t, harness.Sales(broker, heard(&harness.Tally{}, func(harness.PlaceOrder) string { return "" })))
		away.Store(true)
		r.MustSend(harness.PlaceOrder{}) // lets the Receive return that waits
		synctest.Wait()
		want := `receiving from "sales" has been failing since ` + time.Now().UTC().Format(time.RFC3339) + `: inmemory: Receive "sales": ` + errNo.Error()
		time.Sleep(time.Minute)
		got := r.Health()
		if diff := cmp.Diff([]string{want}, got.Reasons); diff != "" || !got.Live || got.Ready {
			t.Errorf("%+v %s", got, diff)
		}
		away.Store(false)
		time.Sleep(time.Minute)
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if got := r.Health(); !got.Ready {
			t.Errorf("afterwards: %+v", got)
		}
	})
}

// An endpoint is not ready while a message waits for its error queue, and names the queue.
func TestAHeldMessageMakesAnEndpointNotReady(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.DeadLetterer
		var broken atomic.Bool
		broken.Store(true)
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" && broken.Load() {
				return errNo
			}
			return nil
		}
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(400 * time.Millisecond)
		h := r.Health()
		want := `error queue "error" accepts no messages since 2000-01-01T00:00:00Z, and failed messages wait for it: 1: `
		if len(h.Reasons) != 1 || !strings.HasPrefix(h.Reasons[0], want) || !strings.Contains(h.Reasons[0], errNo.Error()) {
			t.Errorf("reasons %q, want %q", h.Reasons, want)
		}
		if h.Queues[0].Held != 1 || h.Queues[0].Settling != 0 || h.Queues[0].Bytes != 0 {
			t.Errorf("queue %+v", h.Queues[0])
		}
		broken.Store(false)
		time.Sleep(time.Minute)
		if got := r.Health(); !got.Ready {
			t.Errorf("afterwards: %+v", got)
		}
	})
}

// warningBroker is a transport that foresees a failure.
type warningBroker struct{ *inmemory.Transport }

func (b warningBroker) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	return warningConn{conn, conn.(transport.Installer), conn.(transport.Subscriber)}, err
}

type warningConn struct {
	transport.Conn
	transport.Installer
	transport.Subscriber
}

func (warningConn) Warnings() []string { return []string{"the numbers of rows will be used up"} }

func TestAReadyEndpointHasTheWarningsOfItsTransport(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, heard(&harness.Tally{}, func(harness.PlaceOrder) string { return "" }))
		cfg.Transport = warningBroker{broker}
		got := harness.Start(t, cfg).Health()
		if diff := cmp.Diff([]string{"the numbers of rows will be used up"}, got.Warnings); diff != "" || !got.Ready {
			t.Errorf("%+v %s", got, diff)
		}
	})
}
