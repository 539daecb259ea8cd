package sqs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

type failedEntries = map[int]types.BatchResultErrorEntry

func TestEntriesThatAWSFailedAreSentOnceMoreAlone(t *testing.T) {
	f := &fake{onSend: func(request, _ int) (failedEntries, error) {
		if request == 1 {
			return failedEntries{1: entryFailure("InternalError", "try again", false), 2: entryFailure("InvalidMessageContents", "no", true)}, nil
		}
		return nil, nil
	}}
	c := openFake(t, f, nil)
	_, err := c.Dispatch(t.Context(), []transport.Operation{send("a"), send("b"), send("c")})
	failedOnly(t, err, 2)
	if !strings.Contains(err.Error(), "InvalidMessageContents") {
		t.Errorf("the error does not say why: %v", err)
	}
	if f.requested("send") != 2 || len(f.sends()) != 2 {
		t.Errorf("%d requests, %d messages sent, want 2 and 2", f.requested("send"), len(f.sends()))
	}
}

// AWS refuses a request as a whole for one bad entry. The other entries are sent.
func TestABadEntryFailsNoOtherOfARefusedRequest(t *testing.T) {
	f := &fake{onSend: func(request, n int) (failedEntries, error) {
		if n > 1 || request == 3 { // the second by itself
			return nil, answer(400, "InvalidParameterValue")
		}
		return nil, nil
	}}
	c := openFake(t, f, nil)
	_, err := c.Dispatch(t.Context(), []transport.Operation{send("a"), send("b"), send("c")})
	failedOnly(t, err, 1)
	if len(f.sends()) != 2 {
		t.Errorf("%d messages sent, want 2", len(f.sends()))
	}
}

func TestErrorsOfASendSayWhatIsKnown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err     error
		unknown bool
		is      error
		says    string
	}{
		"throttled":          {err: answer(400, "RequestThrottled"), is: transport.ErrUnreachable, says: "RequestThrottled"},
		"throttled with 503": {err: answer(503, "ThrottlingException"), is: transport.ErrUnreachable, says: "ThrottlingException"},
		"unavailable":        {err: answer(503, "ServiceUnavailable"), is: transport.ErrUnreachable, says: "ServiceUnavailable"},
		"server error":       {err: answer(500, "InternalError"), unknown: true, says: "InternalError"},
		"no answer":          {err: noAnswer(), unknown: true, says: "connection reset"},
		"not reached": {err: &smithy.OperationError{ServiceID: "SQS", OperationName: "Test", Err: &net.OpError{
			Op: "dial", Err: errors.New("connection refused"),
		}}, is: transport.ErrUnreachable, says: "connection refused"},
		"expired credentials": {err: answer(403, "ExpiredToken"), says: "the credentials have expired"},
		"no right":            {err: answer(403, "AccessDenied"), says: "the credentials lack the right"},
		"deleted queue":       {err: answer(400, "AWS.SimpleQueueService.NonExistentQueue"), is: transport.ErrNoQueue, says: `"out"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{onSend: func(int, int) (failedEntries, error) { return nil, test.err }}
			c := openFake(t, f, nil)
			_, err := c.Dispatch(t.Context(), []transport.Operation{send("a"), send("b")})
			failedOnly(t, err, 0, 1)
			if errors.Is(err, transport.ErrOutcomeUnknown) != test.unknown {
				t.Errorf("whether it arrived is said to be unknown: %v, want %v: %v", !test.unknown, test.unknown, err)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("the error is %v, want %v", err, test.is)
			}
			if got := errors.Is(err, transport.ErrUnreachable); got != errors.Is(test.is, transport.ErrUnreachable) {
				t.Errorf("whether AWS was not reached: %v: %v", got, err)
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %q, and does not say %q", err, test.says)
			}
			want := 1 // only the SDK repeats them
			if throttled(test.err) {
				want = tries
			}
			if f.requested("send") != want {
				t.Errorf("%d requests, want %d", f.requested("send"), want)
			}
		})
	}
}

func failedOnly(t *testing.T, err error, want ...int) {
	t.Helper()
	var failed *transport.DispatchError
	if !errors.As(err, &failed) {
		t.Fatalf("the error is %v, want a DispatchError", err)
	}
	var got []int
	for _, op := range failed.Ops {
		got = append(got, op.Index)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("operations failed (-want +got):\n%s", diff)
	}
}

// Completions that AWS failed are repeated. The other completions of the request stand.
func TestFailedCompletionsAreRepeatedAndOthersStand(t *testing.T) {
	f := &fake{
		come: [][]types.Message{{came("a", 1), came("b", 1), came("c", 1)}},
		onDelete: func(request int) (map[string]types.BatchResultErrorEntry, error) {
			failed := map[string]types.BatchResultErrorEntry{"c/1": entryFailure("ReceiptHandleIsInvalid", "", true)}
			if request == 1 {
				failed["a/1"] = entryFailure("InternalError", "", false)
			}
			return failed, nil
		},
	}
	r := openFakeReceiver(t, openFake(t, f, nil))
	ds, err := r.Receive(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	errs := together(t, ds)
	if errs[0] != nil || errs[1] != nil {
		t.Errorf("the first two: %v, %v", errs[0], errs[1])
	}
	if !errors.Is(errs[2], transport.ErrLeaseLost) {
		t.Errorf("one whose receipt handle is not valid any more: %v, want ErrLeaseLost", errs[2])
	}
	if diff := cmp.Diff([]string{"a/1", "b/1"}, slices.Sorted(slices.Values(f.deletions()))); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
}

// together completes all at once.
func together(t *testing.T, ds []transport.Delivery) []error {
	t.Helper()
	errs := make([]error, len(ds))
	done := make(chan struct{})
	for i, d := range ds {
		go func() { errs[i] = d.Complete(context.Background()); done <- struct{}{} }()
	}
	for range ds {
		<-done
	}
	return errs
}

func TestACompletionThatFailedCanBeRepeated(t *testing.T) {
	for name, failure := range map[string]error{"throttled": answer(400, "RequestThrottled"), "no answer": noAnswer(), "expired": answer(403, "ExpiredToken")} {
		t.Run(name, func(t *testing.T) {
			f := &fake{
				come: [][]types.Message{{came("a", 1)}},
				onDelete: func(request int) (map[string]types.BatchResultErrorEntry, error) {
					if request == 1 {
						return nil, failure
					}
					return nil, nil
				},
			}
			r := openFakeReceiver(t, openFake(t, f, nil))
			ds, err := r.Receive(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			if err := ds[0].Complete(t.Context()); err == nil || errors.Is(err, transport.ErrLeaseLost) {
				t.Fatalf("the first: %v", err)
			}
			if err := ds[0].Complete(t.Context()); err != nil {
				t.Errorf("the second: %v", err)
			}
		})
	}
}

// pass lets time go by in a bubble, and what then happens happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A message that SQS delivers again after the message was completed is not handled again.
func TestACompletedMessageIsNotDeliveredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{come: [][]types.Message{{came("a", 1)}, {came("a", 2), came("b", 1)}}}
		r := openFakeReceiver(t, openFake(t, f, nil))
		ds, err := r.Receive(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := ds[0].Complete(t.Context()); err != nil {
			t.Fatal(err)
		}
		if ds, err = r.Receive(t.Context(), 10); err != nil || len(ds) != 1 || ds[0].Message().ID != "b" {
			t.Fatalf("received %d messages, %v, want b alone", len(ds), err)
		}
		pass(time.Second)
		if !slices.Contains(f.deletions(), "a/2") {
			t.Errorf("deleted %v, want the second delivery too", f.deletions())
		}
	})
}

// A message completed after the end of its lease is not deleted under the next lease, and is not
// handled here again.
func TestACompletionAfterTheLeaseDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{come: [][]types.Message{{came("a", 1)}}}
		r := openFakeReceiver(t, openFake(t, f, nil))
		ds, err := r.Receive(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		pass(defaultLease)
		if err := ds[0].Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("Complete: %v, want ErrLeaseLost", err)
		}
		if err := ds[0].Retry(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("Retry: %v, want ErrLeaseLost", err)
		}
		if n := f.requested("delete") + f.requested("hide"); n > 0 {
			t.Errorf("%d requests went to SQS for a message that is not ours", n)
		}
		f.comes([]types.Message{came("a", 2)})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if ds, err := r.Receive(ctx, 10); err == nil {
			t.Errorf("%q is delivered again, although its handler succeeded", ds[0].Message().ID)
		}
		if !slices.Contains(f.deletions(), "a/2") {
			t.Errorf("deleted %v, want the second delivery", f.deletions())
		}
	})
}

// A message that is delivered twice at once belongs to the later delivery.
func TestOfTwoDeliveriesTheLaterOneHoldsTheMessage(t *testing.T) {
	f := &fake{come: [][]types.Message{{came("a", 1)}, {came("a", 2)}}}
	r := openFakeReceiver(t, openFake(t, f, nil))
	var both []transport.Delivery
	for range 2 {
		ds, err := r.Receive(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, ds...)
	}
	if err := both[0].Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("the earlier one: %v, want ErrLeaseLost", err)
	}
	if errs := r.Renew(t.Context(), both); !errors.Is(errs[0], transport.ErrLeaseLost) || errs[1] != nil {
		t.Errorf("renewed: %v", errs)
	}
	if err := both[1].Complete(t.Context()); err != nil {
		t.Errorf("the later one: %v", err)
	}
	if diff := cmp.Diff([]string{"a/2"}, f.deletions()); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
}

func TestAReceiveThatFailsSaysSoAndWorksAgain(t *testing.T) {
	t.Parallel()
	fails := []error{answer(400, "RequestThrottled"), answer(500, "InternalError"), answer(403, "ExpiredToken"), noAnswer()}
	f := &fake{come: [][]types.Message{{came("a", 1)}}}
	f.onReceive = func() (err error) {
		if len(fails) > 0 {
			err, fails = fails[0], fails[1:]
		}
		return err
	}
	r := openFakeReceiver(t, openFake(t, f, nil))
	for _, says := range []string{"RequestThrottled", "InternalError", "credentials have expired", "connection reset"} {
		if ds, err := r.Receive(t.Context(), 1); err == nil || len(ds) > 0 || !strings.Contains(err.Error(), says) {
			t.Errorf("Receive: %d messages, %v, want an error that says %q", len(ds), err, says)
		}
	}
	if ds, err := r.Receive(t.Context(), 1); err != nil || len(ds) != 1 {
		t.Errorf("Receive: %d messages, %v", len(ds), err)
	}
}

func TestLeasesAreRenewedTenInARequestUpToTwelveHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		for part := range 3 {
			var ms []types.Message
			for i := range 10 {
				ms = append(ms, came(fmt.Sprint(part, i), 1))
			}
			f.comes(ms)
		}
		const lease = time.Hour
		c := openFake(t, f, func(cfg *Transport) { cfg.Lease = lease })
		r := openFakeReceiver(t, c)
		var all []transport.Delivery
		for range 3 {
			ds, err := r.Receive(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, ds...)
		}
		received := time.Now()
		for time.Since(received) < maxHold-time.Minute {
			before := f.requested("hide")
			for i, err := range r.Renew(t.Context(), all) {
				if err != nil {
					t.Fatalf("after %v: delivery %d: %v", time.Since(received), i, err)
				}
			}
			if n := f.requested("hide") - before; n != 3 {
				t.Fatalf("%d requests for 30 leases", n)
			}
			if left := maxHold - time.Since(received); left < lease && f.hides()["00/1"] > int32(left/time.Second) {
				t.Errorf("hidden for %d s more, when SQS allows for %v", f.hides()["00/1"], left)
			}
			pass(lease / 3)
		}
		pass(time.Until(received.Add(maxHold)))
		for i, err := range r.Renew(t.Context(), all) {
			if !errors.Is(err, transport.ErrLeaseLost) {
				t.Fatalf("after twelve hours: delivery %d: %v, want ErrLeaseLost", i, err)
			}
		}
	})
}

func TestRenewalTellsWhichLeasesAreLost(t *testing.T) {
	f := &fake{
		come: [][]types.Message{{came("a", 1), came("b", 1), came("c", 1), came("d", 1), came("e", 1), came("f", 1)}},
		onHide: func(int, int) (failedEntries, error) {
			return failedEntries{
				0: entryFailure("ReceiptHandleIsInvalid", "", true),
				1: entryFailure("InvalidParameterValue", "Value x for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.", true),
				2: entryFailure("InvalidParameterValue", "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]", true),
				3: entryFailure("InvalidParameterValue", "something else", true),
				5: entryFailure("InvalidParameterValue", "Value x for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", true),
			}, nil
		},
	}
	r := openFakeReceiver(t, openFake(t, f, nil))
	ds, err := r.Receive(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	errs := r.Renew(t.Context(), ds)
	for i, want := range []bool{true, true, true, false, false, true} {
		if got := errors.Is(errs[i], transport.ErrLeaseLost); got != want {
			t.Errorf("delivery %d: %v, want lost: %v", i, errs[i], want)
		}
	}
	if errs[3] == nil || errs[4] != nil {
		t.Errorf("those that are not: %v, %v", errs[3], errs[4])
	}
}

func TestDelaysNeverExceedWhatSQSTakes(t *testing.T) {
	f := &fake{}
	c := openFake(t, f, func(cfg *Transport) { cfg.ShortDelays = true })
	ops := []transport.Operation{send("a"), send("b"), send("c"), send("d")}
	ops[0].After = 1500 * time.Millisecond
	ops[1].After = maxDelay
	ops[2].After = maxDelay + time.Second
	ops[3].At = time.Now().Add(-time.Hour)
	_, err := c.Dispatch(t.Context(), ops)
	failedOnly(t, err, 2)
	var got []int32
	for _, e := range f.sends() {
		got = append(got, e.DelaySeconds)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]int32{0, 2, 900}, got); diff != "" {
		t.Errorf("DelaySeconds (-want +got):\n%s", diff)
	}
}

// Close returns the messages in flight to the queue, ten in a request.
func TestCloseReleasesTenMessagesInARequest(t *testing.T) {
	f := &fake{}
	for part := range 2 {
		var ms []types.Message
		for i := range 10 {
			ms = append(ms, came(fmt.Sprint(part, i), 1))
		}
		f.comes(ms)
	}
	c := openFake(t, f, nil)
	r := openFakeReceiver(t, c)
	for range 2 {
		if _, err := r.Receive(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if len(f.hides()) != 20 || f.requested("hide") != 2 {
		t.Errorf("%d messages went back in %d requests, want 20 in 2", len(f.hides()), f.requested("hide"))
	}
}
