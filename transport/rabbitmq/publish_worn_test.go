package rabbitmq

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

// sendingOn returns the channel for sending when another one than old is open.
func sendingOn(t *testing.T, c *conn, old *sender) *sender {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, _, _ := c.publishing.now()
	for {
		s, changed, _ := p.current.now()
		if s != nil && s != old {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("no other channel was opened")
		}
	}
}

func isOver(s *sender) bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// The client library keeps something of each message behind one without an answer.
func TestAChannelBehindAMissingAnswerIsReplaced(t *testing.T) {
	t.Parallel()
	broker := newStandIn(t, "silent")
	c := opened(t, broker.url)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	publish := func(n int) {
		if _, err := c.Dispatch(ctx, sends("healthy", n)); err != nil {
			t.Fatal(err)
		}
		broker.wait(t, "healthy", n)
	}
	first := sendingOn(t, c, nil)
	publish(wornAfter + 1)
	if sendingOn(t, c, nil) != first {
		t.Error("a channel without a missing answer was replaced")
	}
	abandoned(t, c, broker, "silent", 1)
	publish(wornAfter - 1)
	if sendingOn(t, c, nil) != first {
		t.Error("the channel was replaced too early")
	}
	publish(1)
	sendingOn(t, c, first)
	publish(1)
	if isOver(first) {
		t.Error("the channel was closed while a publish on it has no answer")
	}
	broker.release("silent", 1, false)
	select {
	case <-first.over:
	case <-ctx.Done():
		t.Error("the channel stays open after the answer")
	}
}

func TestFewReplacedChannelsStayOpen(t *testing.T) {
	t.Parallel()
	var queues []string
	for i := range maxWorn + 1 {
		queues = append(queues, fmt.Sprint("silent-", i))
	}
	broker := newStandIn(t, queues...)
	c := opened(t, broker.url)
	var all []*sender
	s := sendingOn(t, c, nil)
	for _, queue := range queues {
		abandoned(t, c, broker, queue, 1)
		s.worn <- struct{}{}
		all = append(all, s)
		s = sendingOn(t, c, s)
	}
	select {
	case <-all[0].over:
	case <-time.After(time.Minute):
		t.Error("more channels stay open")
	}
	for i, s := range all[1:] {
		if isOver(s) {
			t.Errorf("channel %d is closed", i+1)
		}
	}
}

// A channel that is replaced while the connection is being closed ends, because publishes wait for
// its end.
func TestAReplacedChannelEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	broker := newStandIn(t)
	c := opened(t, broker.url)
	s := sendingOn(t, c, nil)
	p, _, _ := c.publishing.now()
	var stopping sync.WaitGroup
	stopping.Go(p.tasks.Stop)
	for p.tasks.Go(func() {}) {
		runtime.Gosched()
	}
	s.worn <- struct{}{}
	sendingOn(t, c, s)
	p.brokerConn.close()
	select {
	case <-s.over:
	case <-time.After(time.Minute):
		t.Fatal("the channel has not ended")
	}
	stopping.Wait()
}
