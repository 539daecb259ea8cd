package transporttest

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

func idsOf(ds []transport.Delivery) []string {
	all := make([]string, len(ds))
	for i, d := range ds {
		all[i] = d.Message().ID
	}
	return all
}

// sameIDs compares in any order.
func (t *test) sameIDs(got, want []string) {
	t.Helper()
	t.equalIDs(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
}

// sameOrder compares in order, if the broker keeps one.
func (t *test) sameOrder(got, want []string) {
	t.Helper()
	if t.harness.Unordered {
		t.sameIDs(got, want)
		return
	}
	t.equalIDs(got, want)
}

func (t *test) equalIDs(got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("received %s\nwant     %s", got, want)
	}
}

// sameMessage compares id, headers and body.
func (t *test) sameMessage(got, want *transport.Message) {
	t.Helper()
	if got.Undecodable != nil {
		t.Errorf("message %q is undecodable: %v", want.ID, got.Undecodable)
	}
	if got.ID != want.ID {
		t.Errorf("the id is %q, want %q", got.ID, want.ID)
	}
	if string(got.Body) != string(want.Body) {
		t.Errorf("the body of %q is %.200q, want %.200q", want.ID, got.Body, want.Body)
	}
	is, was := maps.Collect(got.Headers.All()), maps.Collect(want.Headers.All())
	for name, value := range was {
		if v, ok := is[name]; !ok || v != value {
			t.Errorf("header %q of %q is %.200q (there: %v), want %.200q", name, want.ID, v, ok, value)
		}
	}
	for name, value := range is {
		if _, ok := was[name]; !ok {
			t.Errorf("header %q of %q was not sent; it is %.200q", name, want.ID, value)
		}
	}
}

func copyOf(m *transport.Message) *transport.Message {
	return &transport.Message{ID: m.ID, Headers: m.Headers.Clone(), Body: slices.Clone(m.Body)}
}

// eventually polls for a condition.
func (t *test) eventually(what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	over := t.ctx().Done()
	for !is() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("%s: not within %v", what, timeout)
		}
	}
}

// await waits for an event.
func await[T any](t *test, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-t.ctx().Done():
		t.Fatalf("%s: not within %v", what, timeout)
		panic("unreachable") //nolint:forbidigo // Fatalf does not return
	}
}

// calling calls f in a goroutine of its own.
func calling(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// pass waits for d: for effects of time alone.
func (t *test) pass(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// fails checks that err is target.
func (t *test) fails(what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: %v, want an error that is %q", what, err, target)
	}
}

// failedOps checks that err is a DispatchError of exactly these operations, and returns them.
func (t *test) failedOps(err error, total int, want ...int) []transport.OpError {
	t.Helper()
	failed, ok := errors.AsType[*transport.DispatchError](err)
	if !ok {
		t.Fatalf("the error is %v, want a *DispatchError", err)
	}
	var got []int
	for _, op := range failed.Ops {
		got = append(got, op.Index)
	}
	if !slices.Equal(got, want) || failed.Total != total {
		t.Errorf("operations %v of %d failed, want %v of %d: %v", got, failed.Total, want, total, err)
	}
	return failed.Ops
}
