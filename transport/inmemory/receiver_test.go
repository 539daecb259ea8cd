package inmemory_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestReceiveWaitsForAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{}, "orders")
		start := time.Now()
		go func() {
			time.Sleep(time.Minute)
			dispatch(t, conn, to("orders", "1"))
		}()
		one(t, receiver(t, conn, "orders"), "1")
		if got := time.Since(start); got != time.Minute {
			t.Errorf("waited %v, want 1m", got)
		}
	})
}

func TestReceiveReturnsAtMostTheLimit(t *testing.T) {
	conn := open(t, &inmemory.Transport{MaxReceive: 3}, "orders")
	if got := conn.Limits().MaxReceive; got != 3 {
		t.Errorf("Limits.MaxReceive = %d", got)
	}
	for i := range 10 {
		dispatch(t, conn, to("orders", fmt.Sprint(i)))
	}
	r := receiver(t, conn, "orders")
	if got := len(receive(t, r, 2)); got != 2 {
		t.Errorf("received %d, want the 2 asked for", got)
	}
	if got := len(receive(t, r, 100)); got != 3 {
		t.Errorf("received %d, want MaxReceive", got)
	}
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{}, "orders")
		r := receiver(t, conn, "orders")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Receive(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error = %v", err)
		}
		dispatch(t, conn, to("orders", "1"))
		if _, err := r.Receive(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error with a message there = %v", err)
		}
		one(t, r, "1")
	})
}

func TestReceiverOfAMissingQueueIsRefused(t *testing.T) {
	conn := open(t, &inmemory.Transport{})
	_, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "nowhere"})
	if !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("error = %v, want ErrNoQueue", err)
	}
}

func TestAClosedReceiverLeavesItsDeliveriesToBeSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{}, "orders")
		dispatch(t, conn, to("orders", "1"))
		r := receiver(t, conn, "orders")
		d := one(t, r, "1")
		go func() {
			time.Sleep(time.Second)
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}()
		if _, err := r.Receive(t.Context(), 1); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("the waiting Receive: %v, want ErrClosed", err)
		}
		dispatch(t, conn, to("orders", "2"))
		if _, err := r.Receive(t.Context(), 1); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("a later Receive: %v, want ErrClosed", err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("closed twice: %v", err)
		}
		do(t, d.Complete)
	})
}

func TestCloseReturnsWhatWasNotSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &inmemory.Transport{}
		conn := open(t, broker, "orders", "empty")
		dispatch(t, conn, to("orders", "1"), to("orders", "2"), to("orders", "3"))
		r := receiver(t, conn, "orders")
		ds := receive(t, r, 2)
		go func() {
			time.Sleep(time.Second)
			if err := errors.Join(conn.Close(), conn.Close()); err != nil {
				t.Error(err)
			}
		}()
		if _, err := receiver(t, conn, "empty").Receive(t.Context(), 1); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("the waiting Receive: %v, want ErrClosed", err)
		}
		closedEverywhere(t, conn, r, ds[0])
		waiting(t, broker, "orders", "1", "2", "3")

		r = receiver(t, open(t, broker), "orders")
		if got := one(t, r, "1").Attempt().N; got != 2 {
			t.Errorf("attempt = %d, want 2: it was delivered before", got)
		}
	})
}

func closedEverywhere(t *testing.T, conn transport.Conn, r transport.Receiver, d transport.Delivery) {
	t.Helper()
	ctx := t.Context()
	calls := map[string]func() error{
		"Dispatch": func() error {
			_, err := conn.Dispatch(ctx, []transport.Operation{to("orders", "9")})
			return err
		},
		"OpenReceiver": func() error {
			_, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "orders"})
			return err
		},
		"Install":   func() error { return conn.(transport.Installer).Install(ctx, transport.Plan{}) },
		"Subscribe": func() error { return conn.(transport.Subscriber).Subscribe(ctx, "orders", nil) },
		"Unsubscribe": func() error {
			return conn.(transport.Subscriber).Unsubscribe(ctx, "orders", nil)
		},
		"Cancel": func() error { return conn.(transport.Canceler).Cancel(ctx, "1") },
		"Inspect": func() error {
			_, err := conn.(transport.Inspector).Inspect(ctx)
			return err
		},
		"Receive": func() error {
			_, err := r.Receive(ctx, 1)
			return err
		},
	}
	for verb, settle := range settles {
		calls[verb] = func() error { return settle(d, ctx) }
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
}

func TestAnExpiredLeaseHandsTheMessageOutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{Lease: 30 * time.Second}, "orders")
		if got := conn.Limits().Lease; got != 30*time.Second {
			t.Errorf("Limits.Lease = %v", got)
		}
		dispatch(t, conn, to("orders", "1"))
		r := receiver(t, conn, "orders")
		start := time.Now()
		first := one(t, r, "1")
		second := one(t, r, "1")
		if got := time.Since(start); got != 30*time.Second {
			t.Errorf("delivered again after %v, want 30s", got)
		}
		if got := second.Attempt().N; got != 2 {
			t.Errorf("attempt = %d, want 2", got)
		}
		if err := first.Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("Complete of the first delivery: %v, want ErrLeaseLost", err)
		}
		do(t, second.Complete)
	})
}

func TestALateSettleFailsThoughNobodyElseHasTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{Lease: 30 * time.Second}, "orders")
		dispatch(t, conn, to("orders", "1"))
		d := one(t, receiver(t, conn, "orders"), "1")
		time.Sleep(30 * time.Second)
		if err := d.Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("error = %v, want ErrLeaseLost", err)
		}
		if got := stats(t, conn, "orders").Ready; got != 1 {
			t.Errorf("%d ready, want 1", got)
		}
	})
}

func TestRenewKeepsTheLease(t *testing.T) {
	for name, without := range map[string]inmemory.Capability{"plain": 0, "wrapped": inmemory.Completer} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { renew(t, without) })
		})
	}
}

func renew(t *testing.T, without inmemory.Capability) {
	conn := open(t, &inmemory.Transport{Lease: 30 * time.Second, Without: without}, "orders")
	dispatch(t, conn, to("orders", "kept"), to("orders", "lost"))
	r := receiver(t, conn, "orders")
	ds := receive(t, r, 2)
	renewer := r.(transport.Renewer)
	time.Sleep(20 * time.Second)
	if errs := renewer.Renew(t.Context(), ds[:1]); errs[0] != nil {
		t.Fatal(errs[0])
	}
	time.Sleep(20 * time.Second)
	errs := renewer.Renew(t.Context(), ds)
	if errs[0] != nil || !errors.Is(errs[1], transport.ErrLeaseLost) {
		t.Errorf("Renew = %v, want nil and ErrLeaseLost", errs)
	}
	do(t, ds[0].Complete)
	if errs := renewer.Renew(t.Context(), []transport.Delivery{nil}); errs[0] == nil {
		t.Error("it renewed a delivery that is not its own")
	}
}

func TestWithoutLeasesNothingIsRenewed(t *testing.T) {
	r := receiver(t, open(t, &inmemory.Transport{}, "orders"), "orders")
	if _, ok := r.(transport.Renewer); ok {
		t.Error("the receiver is a Renewer")
	}
	r.Window(1)
}

func TestInspectCountsWhatAQueueHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{}, "orders", "empty")
		dispatch(t, conn, to("orders", "1"))
		time.Sleep(time.Minute)
		later := to("orders", "4")
		later.After = time.Hour
		dispatch(t, conn, to("orders", "2"), to("orders", "3"), later)
		time.Sleep(time.Second)
		one(t, receiver(t, conn, "orders"), "1")

		all, err := conn.(transport.Inspector).Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []transport.QueueStats{
			{Name: "empty"},
			{Name: "orders", Ready: 2, Unsettled: 1, Delayed: 1, Oldest: time.Second},
		}
		if diff := cmp.Diff(want, all); diff != "" {
			t.Error(diff)
		}
		_, err = conn.(transport.Inspector).Inspect(t.Context(), "orders", "nowhere")
		if !errors.Is(err, transport.ErrNoQueue) {
			t.Errorf("error = %v, want ErrNoQueue", err)
		}
	})
}

func TestManyReceiversTakeEachMessageOnce(t *testing.T) {
	const messages, receivers = 2000, 8
	conn := open(t, &inmemory.Transport{}, "orders")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var taken sync.Map
	var n atomic.Int64
	var wg sync.WaitGroup
	for range receivers {
		r := receiver(t, conn, "orders")
		wg.Go(func() {
			for {
				ds, err := r.Receive(ctx, 7)
				if err != nil {
					return
				}
				for _, d := range ds {
					if _, twice := taken.LoadOrStore(d.Message().ID, true); twice {
						t.Errorf("message %s was delivered twice", d.Message().ID)
					}
					if err := d.Complete(t.Context()); err != nil {
						t.Error(err)
					}
					if n.Add(1) == messages {
						cancel()
					}
				}
			}
		})
	}
	for i := range messages {
		dispatch(t, conn, to("orders", fmt.Sprint(i)))
	}
	wg.Wait()
	if got := stats(t, conn, "orders"); got.Ready+got.Unsettled != 0 || n.Load() != messages {
		t.Errorf("%d of %d taken, %+v left", n.Load(), messages, got)
	}
}
