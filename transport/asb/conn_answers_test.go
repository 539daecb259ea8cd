package asb

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// Only $cbs refuses tokens: a message may have a property "status-code", and a body with the same
// bytes.
func TestAStatusOfAMessageIsNoRefusal(t *testing.T) {
	w := &wire{answers: make(chan []byte, 20)}
	s := newSocket(w, func() {})
	hear := func(frames ...[]byte) {
		t.Helper()
		w.answers <- slices.Concat(frames...)
		if _, err := s.Read(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	const claim, messages = 1, 2
	large := slices.Concat(bytes.Repeat([]byte("x"), 3*maxAnswer), answerOf(claim, 503))
	hear([]byte("AMQP\x03\x01\x00\x00"), []byte("AMQP\x00\x01\x00\x00"), begun(claim), begun(messages))
	write(t, s, attachOf(claim))
	hear(answerOf(messages, 503), frameOf(messages+peerChannel, transferCode, string(answerOf(claim, 503))))
	hear(frameOf(messages+peerChannel, transferCode, string(large)))
	if !s.claims.until.IsZero() {
		t.Fatal("a message was taken for an answer of $cbs")
	}
	hear(answerOf(claim, 503))
	if s.claims.until.IsZero() {
		t.Error("an answer of $cbs was missed")
	}
	hear(answerOf(claim, 202))
	// The peer reuses the number of the channel for messages.
	hear(frameOf(claim+peerChannel, endCode, ""), begun(claim), answerOf(claim, 503))
	if !s.claims.until.IsZero() {
		t.Error("a message on a reused channel was taken for an answer of $cbs")
	}
}

// The same over the client library: its frames, and those of a service.
func TestOnlyTheServiceRefusesTokens(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := &Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin}
	opened, err := tr.Open(t.Context(), transport.Env{Endpoint: "in"})
	if err != nil {
		t.Fatal(err)
	}
	c := opened.(*conn)
	defer func() { _ = c.Close() }()
	if err := c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "in"}, {Name: "out"}}}); err != nil {
		t.Fatal(err)
	}
	client, err := azservicebus.NewClientFromConnectionString(ns.ConnectionString, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.WithoutCancel(t.Context())) }()
	sender, err := client.NewSender("in", nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign := &azservicebus.Message{Body: answerOf(1, 503), ApplicationProperties: map[string]any{"status-code": int32(503)}}
	if err := sender.SendMessage(t.Context(), foreign, nil); err != nil {
		t.Fatal(err)
	}
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "in"})
	if err != nil {
		t.Fatal(err)
	}
	ds, err := r.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if hasPause(r.(*receiver).supervisor) {
		t.Error("a property of a message was taken for a refusal of $cbs")
	}
	if err := ds[0].Complete(t.Context()); err != nil {
		t.Error(err)
	}
	ns.Control.Set(brokertest.ServiceBusFaults{Claims: brokertest.ServiceBusRefusal{Status: 503}})
	r, err = c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "out"}) // a throttled namespace may have the queue
	if err != nil {
		t.Fatal(err)
	}
	if !hasPause(r.(*receiver).supervisor) {
		t.Error("a refusal of $cbs was missed")
	}
}

// hasPause reports whether tokens wait on the current connection.
func hasPause(v *supervisor) bool {
	claims := &v.current.socket.claims
	claims.mu.Lock()
	defer claims.mu.Unlock()
	return !claims.until.IsZero()
}

// The network splits frames anywhere.
func TestAnswersAreFoundHoweverDataIsSplit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	for range 200 {
		var all []byte
		var want []int
		found := claimAnswers{}
		if got := found.read(begun(1)); len(got) > 0 {
			t.Fatal(got)
		}
		found.attached(1)
		for range 20 {
			switch r.IntN(4) {
			case 0:
				status := 200 + r.IntN(400)
				want = append(want, status)
				all = append(all, answerOf(1, uint32(status))...) //nolint:gosec // small
			case 1:
				all = append(all, answerOf(uint16(2+r.IntN(5)), 503)...) //nolint:gosec // small
			case 2:
				all = append(all, frameOf(7, transferCode, string(bytes.Repeat(answerOf(1, 503), r.IntN(100))))...)
			default:
				all = append(all, 0, 0, 0, 8, 2, 0, 0, 0)
			}
		}
		var got []int
		for len(all) > 0 {
			n := 1 + r.IntN(min(len(all), 1+r.IntN(2000)))
			got = append(got, found.read(all[:n])...)
			all = all[n:]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("found %d, want %d", got, want)
		}
	}
}

// What is received on other channels than those of $cbs never delays a token.
func FuzzClaimAnswers(f *testing.F) {
	f.Add(slices.Concat(begun(3), answerOf(3, 503)), 5)
	f.Add([]byte("AMQP\x00\x01\x00\x00\x00\x00\x00\x09\xff\x00\x00\x00\x00"), 3)
	f.Add([]byte{0, 0, 0, 1, 2, 0, 0, 0}, 1)
	f.Fuzz(func(t *testing.T, data []byte, split int) {
		split = min(max(0, split), len(data))
		c := claims{pace: backoff.Backoff{Min: time.Second, Max: time.Second}}
		c.received(data[:split])
		c.received(data[split:])
		if !c.until.IsZero() {
			t.Error("a token waits, and no link is attached to $cbs")
		}
		whole, parts := claimAnswers{}, claimAnswers{}
		for _, found := range []*claimAnswers{&whole, &parts} {
			found.read(begun(1))
			found.attached(1)
		}
		want := whole.read(data)
		if got := append(parts.read(data[:split]), parts.read(data[split:])...); !slices.Equal(got, want) {
			t.Errorf("found %d in two parts, %d in one", got, want)
		}
	})
}

func TestStatusesOfClaimsAreFound(t *testing.T) {
	for name, tt := range map[string]struct {
		data []byte
		want int
	}{
		"an int":       {[]byte("\x71\x00\x00\x01\xf7rest"), 503},
		"a small int":  {[]byte("\x54\x64"), 100},
		"cut short":    {[]byte("\x71\x00\x00"), 0},
		"another type": {[]byte("\xa1\x03503"), 0},
		"nothing":      {nil, 0},
	} {
		if got := statusIn(tt.data); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}
