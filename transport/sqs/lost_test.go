package sqs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

func receiveOne(t *testing.T, r transport.Receiver) transport.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ds, err := r.Receive(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	return ds[0]
}

// heldBy returns the sizes of a receiver's in-flight set.
func heldBy(r *receiver) (held, open int) {
	r.inFlight.mu.Lock()
	defer r.inFlight.mu.Unlock()
	return len(r.inFlight.held), int(r.inFlight.open.Load())
}

func TestALeaseThatRanOutIsNotHeldAnyMore(t *testing.T) {
	for name, tell := range map[string]func(transport.Receiver, transport.Delivery) error{
		"renew": func(r transport.Receiver, d transport.Delivery) error {
			return r.(transport.Renewer).Renew(t.Context(), []transport.Delivery{d})[0]
		},
		"release": func(_ transport.Receiver, d transport.Delivery) error { return d.Release(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{come: [][]types.Message{{came("a", 1)}}}
				r := openFakeReceiver(t, openFake(t, f, nil))
				d := receiveOne(t, r)
				pass(defaultLease)
				if err := tell(r, d); !errors.Is(err, transport.ErrLeaseLost) {
					t.Errorf("%v, want ErrLeaseLost", err)
				}
				if held, open := heldBy(r); held != 0 || open != 0 || f.requested("hide") > 0 {
					t.Errorf("%d are held, %d of them open, and %d requests were made; want none", held, open, f.requested("hide"))
				}
				if err := d.Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
					t.Errorf("Complete: %v, want ErrLeaseLost", err)
				}
				f.comes([]types.Message{came("a", 2), came("b", 1)})
				if got := receiveOne(t, r).Message().ID; got != "b" {
					t.Errorf("%q came, which had been handled", got)
				}
			})
		})
	}
}

// The answer to a completion is recorded when no caller waits for the answer any more.
func TestACompletionWithoutACallerIsRecorded(t *testing.T) {
	for name, answered := range map[string]error{"done": nil, "failed": answer(400, "RequestThrottled")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := make(chan struct{})
				f := &fake{
					come:     [][]types.Message{{came("a", 1)}},
					onDelete: func(int) (map[string]types.BatchResultErrorEntry, error) { <-slow; return nil, answered },
				}
				r := openFakeReceiver(t, openFake(t, f, nil))
				d := receiveOne(t, r)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := d.Complete(ctx); !errors.Is(err, transport.ErrOutcomeUnknown) {
					t.Errorf("%v, want ErrOutcomeUnknown", err)
				}
				close(slow)
				pass(time.Second)
				want := 0
				if answered != nil {
					want = 1
				}
				if held, open := heldBy(r); held != want || open != want {
					t.Errorf("%d are held, %d of them open, want %d", held, open, want)
				}
			})
		})
	}
}

// Where a message is completed first, it is not handled when that comes too late, and has to be
// when it comes again.
func TestALostEarlyCompletionIsNoCompletion(t *testing.T) {
	for name, late := range map[string]func(*fake){
		"by the clock": func(*fake) { pass(defaultLease) },
		"by what SQS answers": func(f *fake) {
			f.onDelete = func(int) (map[string]types.BatchResultErrorEntry, error) {
				return map[string]types.BatchResultErrorEntry{"a/1": entryFailure("ReceiptHandleIsInvalid", "", true)}, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{come: [][]types.Message{{came("a", 1)}}}
				c := openFake(t, f, nil)
				r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "in", CompletesFirst: true})
				if err != nil {
					t.Fatal(err)
				}
				d := receiveOne(t, r)
				late(f)
				if err := d.Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
					t.Errorf("Complete: %v, want ErrLeaseLost", err)
				}
				f.comes([]types.Message{came("a", 2)})
				if err := receiveOne(t, r).Complete(t.Context()); err != nil || !slices.Contains(f.deletions(), "a/2") {
					t.Errorf("the second delivery: %v", err)
				}
			})
		})
	}
}
