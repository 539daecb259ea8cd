package brokertest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestServiceBusHandsOnAllOfAMessage(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	at := time.Now().UTC().Truncate(time.Millisecond)
	sent := azservicebus.Message{
		Body: []byte{0, 1, 255}, MessageID: to.Ptr("id"), CorrelationID: to.Ptr("correlation"), ContentType: to.Ptr("text/plain"),
		Subject: to.Ptr("subject"), To: to.Ptr("to"), ReplyTo: to.Ptr("reply"), ReplyToSessionID: to.Ptr("session"),
		PartitionKey: to.Ptr("partition"), TimeToLive: to.Ptr(time.Hour),
		ApplicationProperties: map[string]any{
			"string": "grüße", "int32": int32(-5), "int64": int64(1) << 60, "negative": int64(-1) << 40, "uint8": uint8(200),
			"float": 1.5, "bool": true, "time": at, "bytes": []byte{1, 2}, "empty": "",
		},
	}
	b.send(q, sent)
	m := b.complete(q)
	got := m.Message()
	got.ScheduledEnqueueTime = nil
	b.equal(*got, sent)
	b.equal(of(m.ExpiresAt).Sub(of(m.EnqueuedTime)), time.Hour)
}

func TestServiceBusTakesBatches(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	s := b.sender(q)
	batch, err := s.NewMessageBatch(b.ctx, nil)
	b.must(err)
	var want []string
	for i := range 100 {
		m := text(fmt.Sprint(i))
		b.must(batch.AddMessage(&m, nil))
		want = append(want, fmt.Sprint(i))
	}
	b.must(s.SendMessageBatch(b.ctx, batch, nil))
	var got []string
	for r := b.receiver(q); len(got) < len(want); {
		messages, err := r.ReceiveMessages(b.ctx, 100, nil)
		b.must(err)
		got = append(got, bodies(messages)...)
	}
	// Between two calls the client releases a message that arrives, so that it comes again, behind
	// others.
	slices.Sort(got)
	slices.Sort(want)
	b.equal(got, want)
}

func TestServiceBusBoundsSizes(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	s := b.sender(q)
	large := azservicebus.Message{Body: bytes.Repeat([]byte("x"), 250<<10)} // of several frames
	b.must(s.SendMessage(b.ctx, &large, nil))
	b.equal(b.complete(q).Body, large.Body)

	larger := azservicebus.Message{Body: bytes.Repeat([]byte("x"), 257<<10)}
	if err := s.SendMessage(b.ctx, &larger, nil); !errors.Is(err, azservicebus.ErrMessageTooLarge) {
		t.Errorf("257 KiB: %v, want ErrMessageTooLarge", err)
	}
	batch, err := s.NewMessageBatch(b.ctx, nil)
	b.must(err)
	if err := batch.AddMessage(&larger, nil); !errors.Is(err, azservicebus.ErrMessageTooLarge) {
		t.Errorf("257 KiB in a batch: %v, want ErrMessageTooLarge", err)
	}
	b.send(q, text("after"))
	b.equal(string(b.complete(q).Body), "after")
}

func TestServiceBusBoundsProperties(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	s := b.sender(q)
	for name, properties := range map[string]map[string]any{
		"one of 33 KiB":   {"a": strings.Repeat("x", 33<<10)},
		"three of 25 KiB": {"a": strings.Repeat("x", 25<<10), "b": strings.Repeat("x", 25<<10), "c": strings.Repeat("x", 25<<10)},
	} {
		if err := s.SendMessage(b.ctx, &azservicebus.Message{ApplicationProperties: properties}, nil); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
	b.send(q, azservicebus.Message{ApplicationProperties: map[string]any{"a": strings.Repeat("x", 31<<10), "b": strings.Repeat("x", 31<<10)}})
	b.equal(len(b.complete(q).ApplicationProperties), 2)
}

func TestServiceBusHasLimitsThatATestSets(t *testing.T) {
	t.Parallel()
	b := busOn(t, brokertest.OwnServiceBusSized(t, 1<<20, 300<<10))
	q := b.queue(admin.QueueProperties{})
	b.send(q, azservicebus.Message{Body: make([]byte, 900<<10)})
	b.equal(len(b.complete(q).Body), 900<<10)
	batch, err := b.sender(q).NewMessageBatch(b.ctx, nil)
	b.must(err)
	if err := batch.AddMessage(&azservicebus.Message{Body: make([]byte, 301<<10)}, nil); !errors.Is(err, azservicebus.ErrMessageTooLarge) {
		t.Errorf("301 KiB in a batch: %v, want ErrMessageTooLarge", err)
	}
}

func TestServiceBusSchedulesAndCancels(t *testing.T) {
	b := newBus(t)
	var (
		s       *azservicebus.Sender
		r       *azservicebus.Receiver
		at      time.Time
		numbers []int64
	)
	brokertest.Longer(t, 700*time.Millisecond, func(delay time.Duration) error {
		q := b.queue(admin.QueueProperties{})
		s, r = b.sender(q), b.receiver(q)
		at = time.Now().Add(delay).Truncate(time.Millisecond) // AMQP has milliseconds
		first, second := text("cancelled"), text("kept")
		var err error
		numbers, err = s.ScheduleMessages(b.ctx, []*azservicebus.Message{&first, &second}, at, nil)
		b.must(err)
		peeked, err := r.PeekMessages(b.ctx, 10, nil)
		b.must(err)
		cancelled := s.CancelScheduledMessages(b.ctx, numbers[:1], nil)
		if time.Now().After(at) {
			return errors.New("the messages came before one was cancelled")
		}
		b.must(cancelled)
		b.equal(len(peeked), 2)
		b.equal(peeked[0].State, azservicebus.MessageStateScheduled)
		return nil
	})
	if err := s.CancelScheduledMessages(b.ctx, numbers[:1], nil); err == nil {
		t.Error("it could be cancelled twice")
	}
	m := b.receive(r)
	b.equal(string(m.Body), "kept")
	if early := time.Until(at); early > 0 {
		t.Errorf("it came %v early", early)
	}
	if late := time.Since(at); late > time.Minute {
		t.Errorf("it came %v late", late)
	}
	b.must(r.CompleteMessage(b.ctx, m, nil))
	if err := s.CancelScheduledMessages(b.ctx, numbers[1:], nil); err == nil {
		t.Error("what was delivered could be cancelled")
	}
	b.nothing(r)
}

func TestServiceBusDelaysScheduledMessages(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("now"))                                           // first: a send may take seconds
	at := time.Now().Add(2 * time.Second).Truncate(time.Millisecond) // AMQP has milliseconds
	b.send(q, azservicebus.Message{Body: []byte("later"), ScheduledEnqueueTime: &at})
	b.equal(string(b.complete(q).Body), "now")
	m := b.complete(q)
	b.equal(string(m.Body), "later")
	if m.EnqueuedTime.Before(at) || time.Now().Before(at) {
		t.Errorf("scheduled for %v, it came at %v", at, m.EnqueuedTime)
	}
}

func TestServiceBusDropsDuplicatesWithinTheWindow(t *testing.T) {
	b := ownBus(t)
	detecting := func(window string) string {
		return b.queue(admin.QueueProperties{RequiresDuplicateDetection: to.Ptr(true), DuplicateDetectionHistoryTimeWindow: &window})
	}
	q := detecting("PT20S")
	m := azservicebus.Message{Body: []byte("x"), MessageID: to.Ptr("same")}
	b.send(q, m, m, azservicebus.Message{Body: []byte("y"), MessageID: to.Ptr("other")})
	b.equal(string(b.complete(q).Body), "x")
	b.equal(string(b.complete(q).Body), "y")
	b.nothing(b.receiver(q))

	q = detecting("PT1S")
	b.send(q, m)
	b.equal(string(b.complete(q).Body), "x")
	b.wait(1100 * time.Millisecond)
	b.send(q, m)
	b.equal(string(b.complete(q).Body), "x")
}

func TestServiceBusDropsDuplicatesOfScheduledMessages(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{RequiresDuplicateDetection: to.Ptr(true)})
	at := time.Now().Add(200 * time.Millisecond)
	m := azservicebus.Message{Body: []byte("x"), MessageID: to.Ptr("same")}
	_, err := b.sender(q).ScheduleMessages(b.ctx, []*azservicebus.Message{&m}, at, nil)
	b.must(err)
	b.send(q, m)
	b.complete(q)
	b.nothing(b.receiver(q))
}

func TestServiceBusDropsOrDeadLettersExpiredMessages(t *testing.T) {
	for _, buries := range []bool{true, false} {
		t.Run(fmt.Sprint(buries), func(t *testing.T) {
			b := newBus(t)
			q := b.queue(admin.QueueProperties{DeadLetteringOnMessageExpiration: &buries})
			b.send(q, azservicebus.Message{Body: []byte("x"), TimeToLive: to.Ptr(100 * time.Millisecond)})
			b.wait(200 * time.Millisecond)
			b.nothing(b.receiver(q))
			dead := b.deadLetters(q)
			if !buries {
				b.nothing(dead)
				return
			}
			b.equal(*b.receive(dead).DeadLetterReason, "TTLExpiredException")
		})
	}
}

func TestServiceBusExpiresByTheQueuesDefault(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{DefaultMessageTimeToLive: to.Ptr("PT0.1S"), DeadLetteringOnMessageExpiration: to.Ptr(true)})
	b.send(q, azservicebus.Message{Body: []byte("x"), TimeToLive: to.Ptr(time.Hour)})
	b.equal(*b.receive(b.deadLetters(q)).DeadLetterReason, "TTLExpiredException")
}

func TestServiceBusShowsMessagesWithoutTakingThem(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("1"), text("2"), text("3"))
	r := b.receiver(q)
	locked := b.receive(r)
	var seen []string
	for {
		page, err := r.PeekMessages(b.ctx, 2, nil)
		b.must(err)
		if len(page) == 0 {
			break
		}
		seen = append(seen, bodies(page)...)
	}
	b.equal(seen, []string{"1", "2", "3"})
	from, err := r.PeekMessages(b.ctx, 5, &azservicebus.PeekMessagesOptions{FromSequenceNumber: to.Ptr[int64](2)})
	b.must(err)
	b.equal(bodies(from), []string{"2", "3"})
	b.must(r.CompleteMessage(b.ctx, locked, nil))
}

func TestServiceBusKeepsOrderAmongThousands(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	const total = 3_000
	var sending sync.WaitGroup
	sending.Go(func() { b.fill(q, total) })
	// By peek-lock the SDK releases messages that arrive between two calls, behind later ones.
	r, err := b.client.NewReceiverForQueue(q, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
	b.must(err)
	for next := 0; next < total; {
		messages, err := r.ReceiveMessages(b.ctx, 500, nil)
		b.must(err)
		for _, m := range messages {
			if want := fmt.Sprint(next); string(m.Body) != want {
				t.Fatalf("got %s, want %s", m.Body, want)
			}
			next++
		}
	}
	sending.Wait()
	b.nothing(r)
}

func TestServiceBusDeliversEachOfThousandsOnce(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	const total = 1_500
	b.fill(q, total)
	completed := make(chan string, total)
	var receiving sync.WaitGroup
	ctx, stop := context.WithCancel(b.ctx)
	for range 3 {
		r := b.receiver(q)
		receiving.Go(func() {
			for {
				messages, err := r.ReceiveMessages(ctx, 200, nil)
				if err != nil {
					return
				}
				b.completeAll(r, messages)
				for _, m := range messages {
					completed <- string(m.Body)
				}
			}
		})
	}
	seen := make(map[string]bool)
	for range total {
		select {
		case body := <-completed:
			if seen[body] {
				t.Errorf("%s came twice", body)
			}
			seen[body] = true
		case <-b.ctx.Done():
			t.Fatalf("got %d of %d", len(seen), total)
		}
	}
	stop()
	receiving.Wait()
	b.nothing(b.receiver(q))
}

// fill sends numbered messages in batches.
func (b *bus) fill(queue string, total int) {
	s := b.sender(queue)
	for sent := 0; sent < total; {
		batch, err := s.NewMessageBatch(b.ctx, nil)
		if err != nil {
			b.Error(err)
			return
		}
		for ; sent < total; sent++ {
			m := text(fmt.Sprint(sent))
			if errors.Is(batch.AddMessage(&m, nil), azservicebus.ErrMessageTooLarge) {
				break
			}
		}
		if err := s.SendMessageBatch(b.ctx, batch, nil); err != nil {
			b.Error(err)
			return
		}
	}
}

func (b *bus) completeAll(r *azservicebus.Receiver, messages []*azservicebus.ReceivedMessage) {
	b.Helper()
	var settling sync.WaitGroup
	for _, m := range messages {
		settling.Go(func() {
			if err := r.CompleteMessage(b.ctx, m, nil); err != nil {
				b.Error(err)
			}
		})
	}
	settling.Wait()
}
