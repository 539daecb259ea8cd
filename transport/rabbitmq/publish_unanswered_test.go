package rabbitmq

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// sends returns n sends of a message to a queue.
func sends(queue string, n int) []transport.Operation {
	ops := make([]transport.Operation, n)
	m := &transport.Message{ID: "m-1", Body: []byte("x")}
	for i := range ops {
		ops[i] = transport.Operation{Message: m, Queue: queue}
	}
	return ops
}

// abandoned dispatches n messages to a silent queue, and cancels the dispatch when they have
// arrived.
func abandoned(t *testing.T, c *conn, broker *standIn, queue string, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Dispatch(ctx, sends(queue, n))
		done <- err
	}()
	broker.wait(t, queue, n)
	cancel()
	if err := <-done; len(indexesOf(err, transport.ErrOutcomeUnknown)) != n {
		t.Fatalf("dispatch without an answer: %v", err)
	}
}

// indexesOf are the indexes of the operations whose error is target.
func indexesOf(err, target error) (ops []int) {
	var failed *transport.DispatchError
	if errors.As(err, &failed) {
		for _, op := range failed.Ops {
			if errors.Is(op.Err, target) {
				ops = append(ops, op.Index)
			}
		}
	}
	return ops
}

func TestASilentQueueKeepsNoPlaceInTheWindow(t *testing.T) {
	t.Parallel()
	broker := newStandIn(t, "silent")
	c := opened(t, broker.url)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	abandoned(t, c, broker, "silent", maxUnconfirmed)
	if _, err := c.Dispatch(ctx, sends("healthy", 2*maxUnconfirmed)); err != nil {
		t.Fatalf("beside a silent queue: %v", err)
	}

	_, err := c.Dispatch(ctx, append(sends("silent", 1), sends("healthy", 1)...))
	busy, _ := errors.AsType[*transport.BusyError](err)
	if busy == nil || busy.Queue != "silent" || !strings.Contains(busy.Reason, "has not confirmed 1000 messages") {
		t.Errorf("a send to the silent queue: %v", err)
	}
	if got := indexesOf(err, transport.ErrUnreachable); len(got) != 1 || got[0] != 0 {
		t.Errorf("operations %d were not sent, want the first: %v", got, err)
	}
	broker.mu.Lock()
	n := len(broker.kept)
	broker.mu.Unlock()
	if n != maxUnconfirmed {
		t.Errorf("the broker has got %d messages for the silent queue, want %d", n, maxUnconfirmed)
	}

	// The first answer ends the silence, though 999 messages have none yet.
	broker.release("silent", 1, false)
	for errors.Is(err, transport.ErrUnreachable) {
		if _, err = c.Dispatch(ctx, sends("silent", 1)); ctx.Err() != nil {
			t.Fatal("an answer has not ended the silence")
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func TestCallersThatWaitMakeNoQueueSilent(t *testing.T) {
	t.Parallel()
	broker := newStandIn(t, "slow")
	c := opened(t, broker.url)
	done := make(chan error, 1)
	go func() {
		_, err := c.Dispatch(t.Context(), sends("slow", maxUnconfirmed))
		done <- err
	}()
	broker.wait(t, "slow", maxUnconfirmed)
	broker.release("slow", maxUnconfirmed, false)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// While answers for a queue are late, another channel replaces the channel of the publishes, and
// further publishes to the queue wait.
func TestPublishesToALateQueueWait(t *testing.T) {
	t.Parallel()
	broker := newStandIn(t, "late")
	c := opened(t, broker.url)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first := sendingOn(t, c, nil)
	done := make(chan error, 2)
	dispatch := func(n int) {
		_, err := c.Dispatch(ctx, sends("late", n))
		done <- err
	}
	go dispatch(maxLate)
	sendingOn(t, c, first)
	go dispatch(1)
	if _, err := c.Dispatch(ctx, sends("healthy", 1)); err != nil {
		t.Error(err)
	}
	broker.mu.Lock()
	kept := len(broker.kept)
	broker.mu.Unlock()
	if kept != maxLate || isOver(first) {
		t.Errorf("%d messages for the late queue, the first channel is over: %v", kept, isOver(first))
	}
	broker.release("late", maxLate, false)
	if err := <-done; err != nil {
		t.Error(err)
	}
	broker.wait(t, "late", 1)
	broker.release("late", 1, false)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLatePublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := unanswered{log: slog.New(slog.DiscardHandler)}
		to, other := route{key: "late", mandatory: true}, route{key: "other", mandatory: true}
		one, two := &sender{}, &sender{}
		if u.wait(to, maxLate-1, one) || u.late(to) != nil {
			t.Error("publishes wait for few answers")
		}
		if !u.wait(to, 1, two) || u.wait(to, 1, two) || u.late(to) == nil {
			t.Error("the channel of late answers is replaced once")
		}
		time.Sleep(replaceEvery)
		if u.wait(to, 1, one) || !u.wait(to, 1, two) {
			t.Error("the channel that has late answers is replaced after a while")
		}
		two.wear.replace()
		time.Sleep(replaceEvery)
		if u.wait(to, 1, two) {
			t.Error("a channel is replaced that has been replaced")
		}
		if u.wait(other, 1, two) || u.late(other) != nil {
			t.Error("another destination is late")
		}
		again := u.late(to)
		u.answered(to)
		<-again
		if u.late(to) != nil {
			t.Error("publishes wait although an answer has come")
		}
		u.wait(to, maxLate, two)
		again = u.late(to)
		u.add(to, &sender{})
		u.silent(to)
		<-again
		if u.late(to) != nil || !isRefused(&u, to) {
			t.Error("publishes to a silent destination wait")
		}
		time.Sleep(minTrial)
		if via, err := u.refuse(to); via != two || err != nil {
			t.Errorf("a trial goes by another channel: %v", err)
		}
		u.remove(to)
		u.waited(other, 1)
		u.waited(to, 2*maxLate+4)
		u.wait(to, maxLate, one)
		again = u.late(to)
		time.Sleep(maxAnswer)
		if u.late(to) != nil || !isRefused(&u, to) {
			t.Error("a destination whose callers wait briefly is never silent")
		}
		<-again // closed
		u.waited(to, maxLate)
		if u.late(to) != nil || u.some.Load() {
			t.Error("a destination without late answers is late")
		}
	})
}

// Publishes whose callers have gone are late, too, so that further publishes wait.
func TestAbandonedPublishesAreLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := unanswered{log: slog.New(slog.DiscardHandler)}
		to := route{key: "late", mandatory: true}
		for range maxLate / 2 {
			u.add(to, &sender{})
		}
		if u.wait(to, maxLate/2-1, &sender{}); u.late(to) != nil {
			t.Error("publishes wait for few answers")
		}
		if u.add(to, &sender{}); u.late(to) == nil {
			t.Error("no publish waits")
		}
		u.answered(to)
	})
}

// The client library drops a notice of a returned message for which its channel has no room.
func TestMoreReturnsThanPlacesInTheWindow(t *testing.T) {
	t.Parallel()
	const waiting = 100
	broker := newStandIn(t, "absent", "gone", "lost")
	c := opened(t, broker.url)
	p, _, _ := c.publishing.now()
	p.unanswered.mu.Lock()
	p.unanswered.replaced = time.Now().Add(time.Hour) // all is published on one channel
	p.unanswered.mu.Unlock()
	abandoned(t, c, broker, "gone", maxUnanswered-1)
	abandoned(t, c, broker, "lost", maxUnconfirmed)
	done := make(chan error, 1)
	go func() {
		_, err := c.Dispatch(t.Context(), sends("absent", waiting))
		done <- err
	}()
	broker.wait(t, "absent", waiting)
	broker.release("gone", maxUnanswered-1, true)
	broker.release("lost", maxUnconfirmed, true)
	broker.release("absent", waiting, true)
	if err := <-done; len(indexesOf(err, transport.ErrNoQueue)) != waiting {
		t.Errorf("dispatch to a queue that does not exist: %v", err)
	}
}

func isRefused(u *unanswered, to route) bool {
	_, err := u.refuse(to)
	return err != nil
}

func TestUnansweredPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := unanswered{log: slog.New(slog.DiscardHandler)}
		silent, other := route{key: "silent", mandatory: true}, route{key: "other", mandatory: true}
		refused := func(to route) bool { return isRefused(&u, to) }
		for n := range maxUnanswered {
			if refused(silent) {
				t.Fatalf("refused after %d", n)
			}
			u.add(silent, &sender{})
		}
		if !refused(silent) || refused(other) {
			t.Error("the bound is for each destination")
		}

		time.Sleep(maxTrial)
		if refused(silent) || !refused(silent) {
			t.Error("a trial is let through, and no more")
		}
		u.add(silent, &sender{})
		if !refused(silent) {
			t.Error("a trial without an answer ends the silence")
		}
		time.Sleep(maxTrial)
		if refused(silent) {
			t.Error("there is no second trial")
		}

		u.answered(other)
		if !refused(silent) {
			t.Error("another destination's answer ends the silence")
		}
		u.answered(silent)
		if refused(silent) {
			t.Error("an answer does not end the silence")
		}
		u.add(silent, &sender{})
		if !refused(silent) {
			t.Error("a further one without an answer does not begin another silence")
		}

		for range maxUnanswered + 2 {
			u.remove(silent)
		}
		if refused(silent) || u.destinations != nil || u.some.Load() || u.total != 0 {
			t.Errorf("something is kept of a destination without abandoned publishes: %+v", u.destinations)
		}
	})
}

func TestASlowDestinationIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer
		u := unanswered{log: slog.New(slog.NewTextHandler(&lines, nil))}
		to := route{key: "slow", mandatory: true}
		named := func() bool { return strings.Contains(strings.Join(u.warnings(), "\n"), `"slow"`) }
		u.add(to, &sender{}) // by a caller that did not wait for long
		if named() {
			t.Error("the queue is named at once")
		}
		u.remove(to)
		for range 3 {
			u.wait(to, 1, &sender{})
		}
		time.Sleep(slowAnswer - lateAnswer)
		for range 3 {
			u.tell(to, &sender{})
		}
		if !named() || strings.Count(lines.String(), "does not confirm") != 1 {
			t.Errorf("warnings %q, log:\n%s", u.warnings(), &lines)
		}
		if isRefused(&u, to) {
			t.Error("refused while callers wait")
		}
		u.add(to, &sender{})
		u.silent(to)
		for pause := minTrial; pause <= maxTrial; pause *= 2 {
			if !isRefused(&u, to) {
				t.Error("not refused")
			}
			time.Sleep(pause)
			if isRefused(&u, to) {
				t.Errorf("no trial after %v", pause)
			}
		}
		u.answered(to)
		if isRefused(&u, to) || named() || strings.Count(lines.String(), "again") != 1 {
			t.Errorf("after an answer: warnings %q, log:\n%s", u.warnings(), &lines)
		}
		for range 3 {
			u.waited(to, 1)
		}
		u.remove(to)
		if u.destinations != nil || u.some.Load() {
			t.Error("something is kept of the destination")
		}
	})
}

// hangingLog is a log handler whose calls return when free is closed.
type hangingLog struct{ free chan struct{} }

func (hangingLog) Enabled(context.Context, slog.Level) bool { return true }
func (l hangingLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l hangingLog) WithGroup(string) slog.Handler          { return l }

func (l hangingLog) Handle(context.Context, slog.Record) error {
	<-l.free
	return nil
}

// A log that hangs holds up the publishes to the queue that the log line is about, and no other.
func TestASlowLogDelaysNoOtherQueue(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	u := unanswered{log: slog.New(hangingLog{free})}
	slow, other := route{key: "slow", mandatory: true}, route{key: "other", mandatory: true}
	var all sync.WaitGroup
	all.Go(func() {
		u.wait(slow, 1, &sender{})
		u.tell(slow, &sender{})
	})
	for !u.some.Load() {
		runtime.Gosched()
	}
	u.answered(other)
	if isRefused(&u, other) {
		t.Error("the other queue is refused")
	}
	close(free)
	all.Wait()
}

func TestAbandonedPublishesOfAllDestinations(t *testing.T) {
	t.Parallel()
	u := unanswered{log: slog.New(slog.DiscardHandler)}
	for i := range maxAbandoned {
		if free, _ := u.add(route{key: string(rune('a' + i%200)), mandatory: true}, &sender{}); !free {
			t.Fatalf("publish %d keeps its place", i)
		}
	}
	if free, _ := u.add(route{key: "one more"}, &sender{}); free {
		t.Error("a publish over the bound gives its place back")
	}
}

func TestTheDestinationOfARoute(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ route, want route }{
		{route{key: "orders", mandatory: true}, route{key: "orders", mandatory: true}},
		{route{exchange: delayLevel(3), key: "0.0.1.queue.orders", mandatory: true}, route{exchange: delayLevel(3), mandatory: true}},
		{route{exchange: "amq.topic", key: "Shop.Placed"}, route{exchange: "amq.topic", key: "Shop.Placed"}},
	} {
		if got := test.route.destination(); got != test.want {
			t.Errorf("%+v: %+v", test.route, got)
		}
	}
}

// A batch that is larger than the window settles its messages in parts. A missing answer in one
// part says nothing of the next.
func TestAMissingAnswerConcernsItsPartOfABatch(t *testing.T) {
	t.Parallel()
	broker := newStandIn(t)
	c := opened(t, broker.url)
	b, err := c.newBatch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.to.release(b.sender)
	b.tooLate = true
	b.settle(t.Context())
	b.ops = sends("healthy", 500)
	for i := range b.ops {
		if err := b.publish(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	if b.settle(t.Context()); len(b.failed) > 0 {
		t.Errorf("%d messages for a healthy queue failed: %v", len(b.failed), b.failed[0].Err)
	}
}
