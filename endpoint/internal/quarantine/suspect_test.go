package quarantine

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// received is a delivery whose settlement is counted.
type received struct {
	transport.Delivery
	attempt transport.Attempt
	refused error // by CompleteWith
	copies  []transport.Operation
	retries int
}

func (d *received) Attempt() transport.Attempt { return d.attempt }

func (d *received) Retry(context.Context) error {
	d.retries++
	return nil
}

func (d *received) CompleteWith(_ context.Context, ops []transport.Operation) error {
	d.copies = append(d.copies, ops...)
	return d.refused
}

func delivery(r *received) *settle.Delivery {
	d := &settle.Delivery{
		Settler: &settle.Settler{
			Log: slog.New(slog.DiscardHandler), Failures: failurelog.New(10, 1000), OnError: func() {},
			Deadlines: settle.Deadlines{Parent: context.Background()},
		},
		Received: r,
	}
	d.ID, d.Queue, d.Original = "m-1", "orders", &transport.Message{ID: "m-1"}
	return d
}

// quarantine returns a quarantine that suspects a message after three deliveries without an end.
func quarantine() *Quarantine {
	return New(Config{
		Quarantine: recoverability.Quarantine{After: 3, Crashes: 2}, Queue: "orders.quarantine", Names: new(names.Queues),
		Log: slog.New(slog.DiscardHandler),
	})
}

func TestAMessageIsSuspected(t *testing.T) {
	for name, test := range map[string]struct {
		attempt transport.Attempt
		failed  int
		missing bool
		want    bool
	}{
		"counted, as often as is allowed":      {attempt: transport.Attempt{N: 3, Exact: true}},
		"counted, and delivered too often":     {attempt: transport.Attempt{N: 4, Exact: true}, want: true},
		"counted, and failed here":             {attempt: transport.Attempt{N: 4, Exact: true}, failed: 1},
		"not counted, and delivered before":    {attempt: transport.Attempt{N: 2}, want: true},
		"not counted, and failed here":         {attempt: transport.Attempt{N: 2}, failed: 1},
		"delivered too often, no quarantine":   {attempt: transport.Attempt{N: 4, Exact: true}, missing: true},
		"not counted, and without quarantine":  {attempt: transport.Attempt{N: 2}, missing: true},
		"counted, and failed at each delivery": {attempt: transport.Attempt{N: 9, Exact: true}, failed: 8},
	} {
		t.Run(name, func(t *testing.T) {
			q, d := quarantine(), delivery(&received{attempt: test.attempt})
			if test.missing {
				q.find(t.Context(), transport.ErrNoQueue)
			}
			for range test.failed {
				d.Failures.Count(d.FailureKey(), time.Unix(0, 0), false)
			}
			if got := q.Suspects(d); got != test.want {
				t.Errorf("suspected: %t, want %t", got, test.want)
			}
		})
	}
}

// A stuck message returns to the queue where it was suspected, unless it is parked or the queue
// refuses the copy: then it stays in quarantine.
func TestAStuckMessageLeavesQuarantine(t *testing.T) {
	for name, test := range map[string]struct {
		n       int
		refused error
		copies  int
		retries int
	}{
		"moved":   {n: 2, copies: 1},
		"parked":  {n: 3, retries: 1},
		"refused": {n: 2, refused: &transport.DispatchError{}, copies: 1, retries: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := &received{attempt: transport.Attempt{N: test.n, Exact: true}, refused: test.refused}
			d := delivery(r)
			d.Original.Headers = fault.QuarantineHeaders(d.Original.Headers, "billing", 4)
			m := quarantine().Receive(d)
			if d.Queue != "billing" || m.Before != 4 || m.Parked != (test.n > 2) {
				t.Errorf("received: %+v for queue %q", m, d.Queue)
			}
			m.ReturnToOrigin(t.Context())
			if !m.Stuck || len(r.copies) != test.copies || r.retries != test.retries {
				t.Errorf("%d copies, and %d retries", len(r.copies), r.retries)
			}
			for _, op := range r.copies {
				if _, queue, _ := fault.LeaveQuarantine(op.Message.Headers); op.Queue != "billing" || queue != "" {
					t.Errorf("a copy to %q has the headers %v", op.Queue, op.Message.Headers)
				}
			}
			loop, ok := errors.AsType[*recoverability.CrashLoopError](m.CrashLoop())
			if !ok || loop.Queue != "billing" || loop.Attempts != 4 || loop.Crashes != test.n-1 {
				t.Errorf("the error of the crash loop: %+v", loop)
			}
		})
	}
}

func TestActionsThatQuarantineForbids(t *testing.T) {
	all := []recoverability.Action{
		recoverability.Retry{},
		recoverability.RetryInline{},
		recoverability.Delay{},
		recoverability.MoveToError{},
		recoverability.DeadLetter{},
		recoverability.Discard{},
	}
	for name, test := range map[string]struct {
		message *Message
		forbids int // of the first actions
	}{
		"outside quarantine": {},
		"in quarantine":      {&Message{}, 2},
		"parked":             {&Message{Parked: true}, 3},
	} {
		for i, action := range all {
			if why := test.message.Forbids(action); (why != "") != (i < test.forbids) {
				t.Errorf("%s: %T: %q", name, action, why)
			}
		}
	}
}
