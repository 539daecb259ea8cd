package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A paused endpoint handles no message, and sends messages nevertheless.
func TestAPausedEndpointSends(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 10 * time.Second
		var done harness.Tally
		cfg := harness.Sales(broker, working[harness.PlaceOrder](&done))
		cfg.Concurrency = 2
		r := harness.Start(t, cfg)
		for range 10 {
			r.MustSend(harness.PlaceOrder{})
		}
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		if err := r.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 500*time.Millisecond || len(done.List()) != 2 {
			t.Errorf("paused after %v with %d handled, want the two that were being handled to finish", took, len(done.List()))
		}
		if left := broker.Messages("sales"); len(left) != 8 {
			t.Errorf("%d messages are back in the queue, want 8", len(left))
		}
		for range 2 {
			r.MustSend(harness.PlaceOrder{})
		}
		want := endpoint.Health{
			Endpoint: "sales", Live: true, Reasons: []string{`receiving from "sales" is paused`},
			Queues: []endpoint.QueueHealth{{Queue: "sales"}},
		}
		if diff := cmp.Diff(want, r.Health()); diff != "" {
			t.Error(diff)
		}
		time.Sleep(time.Hour)
		if n := len(done.List()); n != 2 {
			t.Errorf("%d were handled during the pause", n-2)
		}
		if err := r.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h := r.Health(); !h.Ready {
			t.Errorf("afterwards: %+v", h)
		}
		time.Sleep(time.Minute)
		if n := len(done.List()); n != 12 {
			t.Errorf("%d were handled, want all 12", n)
		}
	})
}

func TestPausingAndResumingTwiceIsNoMoreThanOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var done harness.Tally
		r := harness.Start(t, harness.Sales(broker, working[harness.PlaceOrder](&done)))
		for _, act := range []func(context.Context, ...string) error{r.Resume, r.Pause, r.Pause, r.Resume, r.Resume} {
			if err := act(t.Context()); err != nil {
				t.Error(err)
			}
		}
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		if n := len(done.List()); n != 1 {
			t.Errorf("%d handled", n)
		}
	})
}

func TestPauseCutsHandlersLikeAStopAndCountsNoAttempt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var attempts harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			if attempts.Add(fmt.Sprint(s.Attempt().N)) == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		}))
		cfg.StopTimeout = 5 * time.Second
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Pause(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a pause without the time for it ended with %v", err)
		}
		began := time.Now()
		if err := r.Pause(t.Context()); err != nil { // goes on where the first stopped waiting
			t.Fatal(err)
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("the handler was cut after %v more, want 4s", took)
		}
		if err := r.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{"1", "1"}, attempts.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// Pause stops the named queues only, and leaves satellites running.
func TestPauseLeavesSatellitesRunning(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var relayed, done harness.Tally
		broker.CreateQueues("dead")
		broker.Satellites = []transport.Satellite{{Queue: "dead", Handle: func(context.Context, *transport.Message) ([]transport.Operation, error) {
			relayed.Add("")
			return nil, nil
		}}}
		cfg := harness.Sales(broker, working[harness.PlaceOrder](&done))
		cfg.Instance, cfg.InstanceQueue = "one", true
		r := harness.Start(t, cfg)
		if err := r.Pause(t.Context(), "nowhere"); err == nil || !strings.Contains(err.Error(), `"nowhere"`) {
			t.Errorf("a pause of an unknown queue: %v", err)
		}
		if err := r.Pause(t.Context(), "sales"); err != nil {
			t.Fatal(err)
		}
		r.MustSend(harness.PlaceOrder{})
		r.MustSend(harness.PlaceOrder{}, endpoint.ToThisInstance())
		if err := broker.Put("dead", &transport.Message{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if len(done.List()) != 1 || len(relayed.List()) != 1 {
			t.Errorf("%d handled and %d relayed, want the instance's message and the satellite's", len(done.List()), len(relayed.List()))
		}
		if err := r.Resume(t.Context(), "sales"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if len(done.List()) != 2 {
			t.Errorf("%d handled", len(done.List()))
		}
	})
}

func TestPauseNeedsARunningEndpoint(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		wait := make(chan struct{})
		e, err := endpoint.New(harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			<-wait
			return nil
		})))
		if err != nil {
			t.Fatal(err)
		}
		refused := func(when string) {
			t.Helper()
			for _, err := range []error{e.Pause(t.Context()), e.Resume(t.Context()), e.SetConcurrency(3)} {
				if !errors.Is(err, endpoint.ErrNotRunning) {
					t.Errorf("%s: %v", when, err)
				}
			}
		}
		refused("before Run")
		r := harness.Run(t, e)
		for _, n := range []int{0, math.MaxInt} {
			if err := r.SetConcurrency(n); err == nil {
				t.Errorf("a concurrency of %d is taken", n)
			}
		}
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		r.Stop()
		synctest.Wait()
		if err := e.Pause(t.Context()); !errors.Is(err, endpoint.ErrNotRunning) {
			t.Errorf("while stopping: %v", err)
		}
		close(wait)
		r.End()
		refused("after Run")
	})
}

func TestAPausedEndpointStopsAndOneThatPausesToo(t *testing.T) {
	for _, paused := range []bool{true, false} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			r := harness.Start(t, harness.Sales(broker, working[harness.PlaceOrder](&harness.Tally{})))
			r.MustSend(harness.PlaceOrder{})
			synctest.Wait()
			if paused {
				if err := r.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				go func() { _ = r.Pause(t.Context()) }()
				synctest.Wait()
			}
			r.End()
		})
	}
}

func TestAQueueThatCannotBeReceivedFromStaysPaused(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var broken atomic.Bool
		broker.Fail = func(verb, _ string) error {
			if verb == "OpenReceiver" && broken.Load() {
				return errNo
			}
			return nil
		}
		var done harness.Tally
		r := harness.Start(t, harness.Sales(broker, working[harness.PlaceOrder](&done)))
		if err := r.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		broken.Store(true)
		if err := r.Resume(t.Context()); !errors.Is(err, errNo) {
			t.Errorf("resumed: %v", err)
		}
		if h := r.Health(); h.Ready {
			t.Errorf("%+v", h)
		}
		broken.Store(false)
		if err := r.Resume(t.Context()); err != nil {
			t.Error(err)
		}
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		if len(done.List()) != 1 {
			t.Errorf("%d handled", len(done.List()))
		}
	})
}

func TestConcurrencyChangesWhileRunningAndOverAPause(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var done harness.Tally
		var all harness.Gauge
		cfg := harness.Sales(broker, working[harness.PlaceOrder](&done, &all))
		cfg.Concurrency = 2
		r := harness.Start(t, cfg)
		for range 200 {
			r.MustSend(harness.PlaceOrder{})
		}
		pace := func(want int) {
			t.Helper()
			time.Sleep(3*time.Second + time.Millisecond) // what ran before has ended
			before := len(done.List())
			time.Sleep(time.Second)
			if n := len(done.List()) - before; n != want {
				t.Errorf("%d handled in a second, want %d", n, want)
			}
		}
		pace(2)
		for _, n := range []int{7, 1, 4} {
			if err := r.SetConcurrency(n); err != nil {
				t.Fatal(err)
			}
			pace(n)
		}
		if err := r.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.SetConcurrency(5); err != nil {
			t.Fatal(err)
		}
		if err := r.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		pace(5)
	})
}

func TestPausesAtWillLoseAndDoubleNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 10 * time.Second
		var done harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
			time.Sleep(100 * time.Millisecond)
			done.Add(m.ID)
			return nil
		}))
		cfg.Concurrency = 4
		r := harness.Start(t, cfg)
		for n := range 500 {
			r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(n)})
		}
		var all sync.WaitGroup
		for k := range 8 {
			all.Go(func() {
				for n := range 50 {
					time.Sleep(time.Duration(k*37+n*11) * time.Millisecond)
					var err error
					switch (k + n) % 3 {
					case 0:
						err = r.Pause(t.Context())
					case 1:
						err = r.Resume(t.Context())
					case 2:
						err = r.SetConcurrency(1 + n%9)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if err := r.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		seen := map[string]int{}
		for _, id := range done.List() {
			seen[id]++
		}
		if len(seen) != 500 || len(done.List()) != 500 {
			t.Errorf("%d messages handled %d times, want 500 once each", len(seen), len(done.List()))
		}
	})
}
