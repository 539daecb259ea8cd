package sqlite

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

func TestALeaseThatRanOutIsHandedOutAgainAndFenced(t *testing.T) {
	path := temp(t)
	a := dial(t, Transport{Path: path, Lease: 50 * time.Millisecond}, queue, "shipping")
	b := dial(t, Transport{Path: path})
	send(t, a, to(queue, "m"))
	old := receive(t, receiver(t, a, queue))
	d := receive(t, receiver(t, b, queue))
	if d.Attempt().N != 2 {
		t.Errorf("attempt %d, want 2", d.Attempt().N)
	}
	late := map[string]func() error{
		"Complete":     func() error { return old.Complete(t.Context()) },
		"Retry":        func() error { return old.Retry(t.Context()) },
		"Release":      func() error { return old.Release(t.Context()) },
		"CompleteWith": func() error { return completeWith(t.Context(), old, []transport.Operation{to("shipping", "x")}) },
		"Tx.Complete": func() error {
			tx, err := old.(transport.Transactor).Begin(t.Context())
			if err != nil {
				return err
			}
			return tx.Complete(t.Context(), []transport.Operation{to("shipping", "y")})
		},
	}
	for verb, settle := range late {
		if err := settle(); !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("a late %s: %v, want ErrLeaseLost", verb, err)
		}
	}
	want := []transport.QueueStats{{Name: queue, Unsettled: 1}, {Name: "shipping"}}
	if diff := cmp.Diff(want, inspectAll(t, a)); diff != "" {
		t.Error("the late settles left traces (-want +got):\n", diff)
	}
	if err := d.Complete(t.Context()); err != nil {
		t.Error("the holder's Complete:", err)
	}
}

func TestRenewKeepsALeaseAndTellsOfLostOnes(t *testing.T) {
	path := temp(t)
	const lease = time.Minute // longer than the test: the leases that end here are made to
	a, b := dial(t, Transport{Path: path, Lease: lease}, queue), dial(t, Transport{Path: path})
	send(t, a, to(queue, "kept"), to(queue, "lost"))
	ra, rb := receiver(t, a, queue), receiver(t, b, queue)
	kept, lost := receive(t, ra), receive(t, ra)

	db := mine(t, path)
	end := func() int { return count(t, db, `select visible_at from holdfast_messages where id = 'kept'`) }
	execute(t, db, `update holdfast_messages set visible_at = visible_at - 30000000 where id = 'kept'`) // half of it is over
	before := end()
	if err := ra.(transport.Renewer).Renew(t.Context(), []transport.Delivery{kept})[0]; err != nil {
		t.Error("renew:", err)
	}
	if longer := time.Duration(end()-before) * time.Microsecond; longer < lease/2 {
		t.Errorf("the renewed lease ends %v later, want %v or more", longer, lease/2)
	}
	execute(t, db, `update holdfast_messages set visible_at = 0 where id = 'lost'`) // its lease is over
	if id := receive(t, rb).Message().ID; id != "lost" {
		t.Errorf("taken over: %q, want the one that was not renewed", id)
	}

	errs := ra.(transport.Renewer).Renew(t.Context(), []transport.Delivery{lost, kept})
	if !errors.Is(errs[0], transport.ErrLeaseLost) || errs[1] != nil {
		t.Errorf("renewing the lost and the kept one: %v", errs)
	}
}

func TestCloseReturnsWhatIsUnsettledAtOnce(t *testing.T) {
	path := temp(t)
	a, b := dial(t, Transport{Path: path}, queue), dial(t, Transport{Path: path})
	send(t, a, to(queue, "m"))
	d := receive(t, receiver(t, a, queue))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if n := receive(t, receiver(t, b, queue)).Attempt().N; n != 2 {
		t.Errorf("attempt %d, want 2", n)
	}
	if err := d.Complete(t.Context()); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("settling after Close: %v, want ErrClosed", err)
	}
	tx, err := d.(transport.Transactor).Begin(t.Context())
	if err == nil {
		err = tx.Complete(t.Context(), nil)
	}
	if !errors.Is(err, transport.ErrClosed) {
		t.Errorf("a transaction after Close: %v, want ErrClosed", err)
	}
}

func TestCloseLeavesNoGoroutineBehind(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	send(t, conn, to(queue, "m"), to(queue, "n"))
	r := receiver(t, conn, queue)
	receive(t, r)
	receive(t, r)
	ended := make(chan error)
	go func() {
		_, err := r.Receive(context.Background(), 1)
		ended <- err
	}()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Receive ended with %v, want ErrClosed", err)
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-look.C {
		left := ours()
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("after Close there is still:\n", left)
		}
	}
}

// ours are the stacks of goroutines that this package, the engine or database/sql started.
func ours() string {
	buf := make([]byte, 1<<20)
	var found []string
	for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")[1:] {
		_, creator, _ := strings.Cut(stack, "created by ")
		for _, p := range []string{"database/sql", "internal/tablequeue", "modernc.org", "transport/sqlite.open"} {
			if strings.Contains(creator, p) {
				found = append(found, stack)
			}
		}
	}
	return strings.Join(found, "\n\n")
}

// Two connections share a queue, and deliver no message twice.
func TestTwoConnsShareAQueue(t *testing.T) {
	const n = 600
	path := temp(t)
	conns := []transport.Conn{dial(t, Transport{Path: path}, queue), dial(t, Transport{Path: path})}
	ops := make([]transport.Operation, n)
	for i := range ops {
		ops[i] = to(queue, fmt.Sprint(i))
	}
	send(t, conns[0], ops...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	seen := map[string]int{}
	var receiving sync.WaitGroup
	for _, conn := range conns {
		r := receiver(t, conn, queue)
		receiving.Go(func() {
			for ctx.Err() == nil {
				ds, err := r.Receive(ctx, 7)
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				for _, d := range ds {
					if err := d.Complete(t.Context()); err != nil {
						t.Error(err)
					}
				}
				mu.Lock()
				for _, d := range ds {
					seen[d.Message().ID] += d.Attempt().N
				}
				if len(seen) == n {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	receiving.Wait()
	for i := range n {
		if seen[fmt.Sprint(i)] != 1 {
			t.Fatalf("message %d was delivered %d times", i, seen[fmt.Sprint(i)])
		}
	}
}

func TestAReceiveWhoseContextEndsDropsNothing(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	r := receiver(t, conn, queue)
	for i := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan []transport.Delivery)
		go func() {
			ds, _ := r.Receive(ctx, 1)
			got <- ds
		}()
		send(t, conn, to(queue, fmt.Sprint(i)))
		cancel()
		ds := <-got
		if len(ds) == 0 {
			ds = []transport.Delivery{receive(t, r)}
		}
		if id := ds[0].Message().ID; id != fmt.Sprint(i) || ds[0].Attempt().N != 1 {
			t.Fatalf("message %d: received %q, attempt %d", i, id, ds[0].Attempt().N)
		}
		if err := ds[0].Complete(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
