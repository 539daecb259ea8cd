package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// mixed is a database with the endpoint go, and the queue Net.Peer of NServiceBus.
type mixed struct {
	*running

	t       *testing.T
	db      *pgxpool.Pool
	handled chan int
}

const netPeer = "Net.Peer"

func newMixed(t *testing.T) *mixed {
	t.Helper()
	t.Parallel()
	url := brokertest.Postgres(t)
	db, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	m := &mixed{t: t, db: db, handled: make(chan int, 100)}
	m.ok(nservicebus.CreateQueue(t.Context(), db, m.address(netPeer)))
	m.ok(nservicebus.CreateDelayed(t.Context(), db, m.address("go.Delayed")))
	m.running = start(t, endpoint.Config{
		Name: "go", Transport: &postgres.Transport{URL: url}, Install: true,
		Messages: []endpoint.Message{endpoint.Command[work]("Mixed.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, _ *endpoint.Session, w work) error {
			m.handled <- w.N
			return nil
		})},
	})
	return m
}

func (*mixed) address(table string) string { return nservicebus.Address("public", table) }

func (m *mixed) ok(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// delayed stores a message with number n for a queue in the table in which NServiceBus keeps the
// delayed ones of go.
func (m *mixed) delayed(n int, to string, after time.Duration) {
	m.t.Helper()
	msg := nservicebus.Message{Headers: map[string]string{
		header.MessageID: fmt.Sprint(n), header.MessageIntent: "Send", header.EnclosedMessageTypes: "Mixed.Work",
	}, Body: fmt.Appendf(nil, `{"N":%d}`, n)}
	m.ok(nservicebus.Delay(m.t.Context(), m.db, m.address("go.Delayed"), to, msg, after))
}

// received waits for a message in a queue of NServiceBus.
func (m *mixed) received(address string) *nservicebus.Message {
	m.t.Helper()
	for deadline := time.Now().Add(timeLimit); time.Now().Before(deadline); {
		msg, err := nservicebus.Receive(m.t.Context(), m.db, address)
		m.ok(err)
		if msg != nil {
			return msg
		}
		_, err = m.db.Exec(m.t.Context(), `SELECT pg_sleep(0.02)`)
		m.ok(err)
	}
	m.t.Fatalf("no message arrived in %s", address)
	return nil
}

func TestADelayedMessageReachesNServiceBusWhenItIsDue(t *testing.T) {
	m := newMixed(t)
	began := time.Now()
	m.send(work{1}, endpoint.To(netPeer), endpoint.After(500*time.Millisecond))
	msg := m.received(m.address(netPeer))
	if early := 500*time.Millisecond - time.Since(began); early > 0 {
		t.Errorf("received %v early", early)
	}
	if _, found := msg.Headers[nservicebus.ForwardDestination]; found || string(msg.Body) != `{"N":1}` || msg.Headers[header.DeliverAt] == "" {
		t.Errorf("received %+v", msg)
	}
	if h := m.Health(); !h.Ready {
		t.Errorf("health %+v", h)
	}
}

func TestDelayedMessagesOfNServiceBusAreHandledOrSentOn(t *testing.T) {
	m := newMixed(t)
	m.delayed(1, m.address("go"), 500*time.Millisecond)
	m.delayed(2, m.address(netPeer), 500*time.Millisecond)
	m.delayed(3, m.address("gone"), 500*time.Millisecond)
	if n := <-m.handled; n != 1 {
		t.Errorf("message %d was handled, want 1", n)
	}
	if msg := m.received(m.address(netPeer)); msg.Headers[header.MessageID] != "2" || len(msg.Headers) != 3 {
		t.Errorf("Net.Peer received %+v", msg)
	}
	for _, want := range []string{m.address("gone")} {
		headers := m.failed()
		if headers.Get(header.MessageID) != "3" || headers.Get(header.FailedQ) != want {
			t.Errorf("in the error queue: message %s from %s, want 3 from %s", headers.Get(header.MessageID), headers.Get(header.FailedQ), want)
		}
	}
	if n := len(m.handled); n != 0 {
		t.Errorf("%d more messages were handled", n)
	}
}

// failed waits for a message in the error queue, removes it and returns its headers.
func (m *mixed) failed() header.Map {
	m.t.Helper()
	for deadline := time.Now().Add(timeLimit); time.Now().Before(deadline); {
		var text string
		err := m.db.QueryRow(m.t.Context(), `DELETE FROM error WHERE seq = (SELECT min(seq) FROM error) RETURNING headers`).Scan(&text)
		if err == nil {
			h, err := header.ParseJSON(text)
			m.ok(err)
			return h
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			m.t.Fatal(err)
		}
		_, err = m.db.Exec(m.t.Context(), `SELECT pg_sleep(0.02)`)
		m.ok(err)
	}
	m.t.Fatal("no message arrived in the error queue")
	return header.Map{}
}

// A delayed message whose queue is removed moves to the error queue.
func TestDelayedMessageOfRemovedQueue(t *testing.T) {
	m := newMixed(t)
	m.send(work{1}, endpoint.To(netPeer), endpoint.After(500*time.Millisecond))
	_, err := m.db.Exec(t.Context(), `DROP TABLE `+m.address(netPeer))
	m.ok(err)
	if h := m.failed(); h.Get(header.FailedQ) != m.address(netPeer) || h.Get(header.ForwardDestination) != "" {
		t.Errorf("in the error queue from %s, for %q", h.Get(header.FailedQ), h.Get(header.ForwardDestination))
	}
}

func TestADelayedMessageWaitsWhileItsQueueIsLocked(t *testing.T) {
	m := newMixed(t)
	tx, err := m.db.Begin(t.Context())
	m.ok(err)
	m.send(work{1}, endpoint.To(netPeer), endpoint.After(500*time.Millisecond))
	_, err = tx.Exec(t.Context(), `LOCK TABLE "Net.Peer" IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(1)`)
	m.ok(err)
	m.ok(tx.Commit(t.Context()))
	m.received(m.address(netPeer))
	var failed, kept int
	m.ok(m.db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM error), (SELECT count(*) FROM "go.forwards")`).Scan(&failed, &kept))
	if failed != 0 || kept != 0 {
		t.Errorf("%d messages failed, %d are kept, want none", failed, kept)
	}
}
