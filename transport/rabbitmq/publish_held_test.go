package rabbitmq

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// heldBatch returns a batch for a destination whose answers are late.
func heldBatch(to route) *batch {
	p := &publisher{}
	p.unanswered.log = slog.New(slog.DiscardHandler)
	p.unanswered.wait(to, maxLate, &sender{})
	return &batch{to: p}
}

// A publish that waits while further answers come and are late again waits no longer than maxAnswer
// after the last answer.
func TestAPublishIsNotHeldForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := route{key: "late", mandatory: true}
		b := heldBatch(to)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- b.awaitLate(ctx, to) }()
		time.Sleep(maxAnswer / 2)
		synctest.Wait()
		u := &b.to.unanswered
		u.mu.Lock() // the destination is late again before the publish sees the answer
		u.destinations[to].wake()
		u.mu.Unlock()
		time.Sleep(maxAnswer)
		synctest.Wait()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the publish still waits")
			cancel()
			<-done
		}
	})
}

// While the broker takes no messages at all, a destination whose answers are late does not become
// silent.
func TestABlockedBrokerMakesNoHeldDestinationSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := route{key: "late", mandatory: true}
		b := heldBatch(to)
		done := make(chan error, 1)
		go func() { done <- b.awaitLate(t.Context(), to) }()
		synctest.Wait()
		blocks := make(chan amqp.Blocking)
		defer close(blocks)
		go b.to.watchBlocked(blocks)
		began := time.Now()
		blocks <- amqp.Blocking{Active: true, Reason: "memory"}
		if err := <-done; err != nil || time.Since(began) > 0 {
			t.Errorf("the publish was held for %v: %v", time.Since(began), err)
		}
		time.Sleep(maxAnswer)
		blocks <- amqp.Blocking{}
		synctest.Wait()
		if b.awaits(to) == nil {
			t.Error("publishes do not wait after the alarm")
		}
		if isRefused(&b.to.unanswered, to) {
			t.Error("the destination is silent")
		}
	})
}

// A batch publishes the messages for other queues before those that wait for a queue whose answers
// are late.
func TestALateQueueHoldsUpNoOthersInABatch(t *testing.T) {
	t.Parallel()
	broker := newStandIn(t, "late")
	c := opened(t, broker.url)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 2)
	dispatch := func(ops []transport.Operation) {
		_, err := c.Dispatch(ctx, ops)
		done <- err
	}
	first := sendingOn(t, c, nil)
	go dispatch(sends("late", maxLate))
	sendingOn(t, c, first)
	go dispatch(append(sends("late", 1), sends("healthy", 1)...))
	broker.wait(t, "healthy", 1)
	broker.mu.Lock()
	kept := len(broker.kept)
	broker.mu.Unlock()
	if kept != maxLate {
		t.Errorf("%d messages for the late queue were sent", kept)
	}
	broker.release("late", maxLate, false)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A batch publishes the messages for a late queue in their order, also if the queue answers
// meanwhile.
func TestPostponedMessagesKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, healthy := route{key: "late", mandatory: true}, route{key: "healthy", mandatory: true}
		b := heldBatch(late)
		b.postpones = true
		if !b.postpone(late) || b.postpone(healthy) {
			t.Error("the batch postpones other messages than those for the late queue")
		}
		b.to.unanswered.answered(late)
		if !b.postpone(late) {
			t.Error("a message for the queue overtakes another one")
		}
	})
}

// Two queues become late within replaceEvery. The channel of each is replaced.
func TestASecondLateQueueGetsAnotherChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := unanswered{log: slog.New(slog.DiscardHandler)}
		first, second := route{key: "first", mandatory: true}, route{key: "second", mandatory: true}
		one, two := new(sender), new(sender)
		if !u.wait(first, 100, one) {
			t.Error("the first channel stays")
		}
		one.wear.replace()
		time.Sleep(time.Millisecond)
		if u.wait(second, 100, two) {
			t.Error("channels follow each other quickly")
		}
		time.Sleep(slowAnswer - lateAnswer)
		u.wait(first, 1, one) // a trial
		if !u.tell(second, two) {
			t.Error("the second channel stays")
		}
	})
}

// Answers may be lost with a replica of a queue. The queue is not named any more once it has
// answered another publish.
func TestAQueueThatLostAnswersIsNotNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := unanswered{log: slog.New(slog.DiscardHandler)}
		to := route{key: "lost", mandatory: true}
		for range 3 {
			u.add(to, new(sender))
		}
		time.Sleep(slowAnswer)
		if len(u.warnings()) != 1 {
			t.Errorf("before an answer: %q", u.warnings())
		}
		u.answered(to)
		time.Sleep(time.Hour)
		if len(u.warnings()) > 0 {
			t.Errorf("an hour after an answer: %q", u.warnings())
		}
		u.add(to, new(sender))
		if len(u.warnings()) > 0 {
			t.Errorf("at once after another publish: %q", u.warnings())
		}
		time.Sleep(slowAnswer)
		if texts := u.warnings(); len(texts) != 1 || !strings.Contains(texts[0], "not confirmed 1 messages") {
			t.Errorf("some time after another publish: %q", texts)
		}
	})
}
