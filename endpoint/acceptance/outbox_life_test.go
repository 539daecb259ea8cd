package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Equal messages without an id are different messages: the id that the driver makes of their
// content is not recorded.
func TestEqualMessagesWithoutID(t *testing.T) {
	onOutboxes(t, func(t *testing.T, s *outboxShop) {
		start(t, s.working(s.url))
		const messages = 3
		for range messages {
			m := &transport.Message{Body: []byte(`{"N":1}`)}
			m.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Kill.Work"})
			if _, err := s.conn.Dispatch(t.Context(), []transport.Operation{{Message: m, Queue: s.work}}); err != nil {
				t.Fatal(err)
			}
		}
		s.eventually("each message was handled", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.sent[1]) == messages
		})
		if rows, err := s.rows.rows(t.Context()); err != nil || len(rows) != messages {
			t.Errorf("%d rows are written, %v; want %d", len(rows), err, messages)
		}
		s.emptied(s.work)
	})
}

// While an outbox is switched on, instances with and without it have one queue.
func TestMixedOutboxInstances(t *testing.T) {
	onOutboxes(t, func(t *testing.T, s *outboxShop) {
		const messages = 200
		var with, without atomic.Int64
		newer := s.config(s.work, s.url, endpoint.Handle(func(ctx context.Context, session *endpoint.Session, m work) error {
			with.Add(1)
			return errors.Join(s.rows.write(ctx, session, m.N), session.Send(ctx, worked(m)))
		}))
		newer.Outbox = s.rows.transport()
		older := s.config(s.work, s.url, endpoint.Handle(func(ctx context.Context, session *endpoint.Session, m work) error {
			without.Add(1)
			return errors.Join(s.rows.exec(ctx, fmt.Sprintf(`INSERT INTO done (n) VALUES (%d)`, m.N)), session.Send(ctx, worked(m)))
		}))
		start(t, newer)
		start(t, older)
		s.send(s.work, messages)
		s.arrived(messages)
		s.written(messages)
		s.emptied(s.work)
		if with.Load() == 0 || without.Load() == 0 {
			t.Errorf("%d were handled with an outbox, %d without", with.Load(), without.Load())
		}
	})
}

// A start without the tables says once how to create them.
func TestMissingInboxAdvice(t *testing.T) {
	t.Parallel()
	db := &sqlite.Transport{Path: filepath.Join(t.TempDir(), "shop.db")}
	e, err := endpoint.New(endpoint.Config{Name: "sales", Transport: &inmemory.Transport{}, Outbox: db})
	must(t, err)
	err = e.Run(t.Context())
	if !errors.Is(err, transport.ErrNoQueue) || strings.Count(err.Error(), "create it") != 1 || strings.Contains(err.Error(), "installer") {
		t.Errorf("the error is %v", err)
	}
}

// What is left in the outbox of an endpoint that was stopped is sent by a send-only endpoint of the
// same name.
func TestSendOnlyDrainsOutbox(t *testing.T) {
	onOutboxes(t, func(t *testing.T, s *outboxShop) {
		const messages = 20
		proxy, away := s.throughProxy()
		stopped := s.working(away)
		stopped.StopTimeout = 100 * time.Millisecond
		r := start(t, stopped)
		proxy.Refuse()
		for n := range messages {
			tx := s.begin(n)
			r.send(worked{n}, endpoint.In(tx.tx))
			must(t, tx.commit())
		}
		r.end()
		if n := s.depth(s.openDatabase(), s.work+".outbox"); n == 0 || s.count() > 0 {
			t.Fatalf("%d messages are left in the outbox, %d have arrived", n, s.count())
		}
		drain := s.config(s.work, s.url)
		drain.SendOnly, drain.Outbox = true, s.rows.transport()
		start(t, drain)
		s.arrived(messages)
		s.written(messages)
		s.emptied(s.work)
	})
}

// Two endpoints have one database as their outbox, and receive messages with the same ids.
func TestTwoEndpointsOneOutbox(t *testing.T) {
	onOutboxes(t, func(t *testing.T, s *outboxShop) {
		const messages = 100
		other := brokertest.Name(t, "other")
		start(t, s.working(s.url))
		second := s.config(other, s.url, endpoint.Handle(func(ctx context.Context, session *endpoint.Session, m work) error {
			m.N += messages
			return errors.Join(s.rows.write(ctx, session, m.N), session.Send(ctx, worked(m)))
		}))
		second.Outbox = s.rows.transport()
		start(t, second)
		var sending sync.WaitGroup
		for _, queue := range []string{s.work, other} {
			sending.Go(func() { s.send(queue, messages) })
		}
		sending.Wait()
		s.arrived(2 * messages)
		s.written(2 * messages)
		s.emptied(s.work)
		s.emptied(other)
		for _, inbox := range []string{s.work + ".handled", other + ".handled"} {
			stats, err := s.openDatabase().(transport.InboxInspector).InspectInbox(t.Context(), inbox)
			if err != nil || stats.Rows != messages {
				t.Errorf("inbox %q has %d keys, %v; want %d", inbox, stats.Rows, err, messages)
			}
		}
	})
}

// Handlers and programs commit while the broker refuses connections, and all is sent when it
// accepts them.
func TestBrokerAwayDuringCommits(t *testing.T) {
	onOutboxes(t, func(t *testing.T, s *outboxShop) {
		proxy, away := s.throughProxy()
		received, refused := make(chan struct{}), make(chan struct{})
		var handled atomic.Int64
		cfg := s.config(s.work, away, endpoint.Handle(func(ctx context.Context, session *endpoint.Session, m work) error {
			if handled.Add(1) == 1 {
				close(received)
			}
			<-refused
			return errors.Join(s.rows.write(ctx, session, m.N), session.Send(ctx, worked(m)))
		}))
		cfg.Outbox = s.rows.transport()
		r := start(t, cfg)
		s.send(s.work, 1)
		<-received
		proxy.Refuse()
		close(refused)
		s.eventually("the handler's commit", func() bool {
			rows, err := s.rows.rows(t.Context())
			return err == nil && len(rows) == 1
		})
		done := s.begin(1)
		r.send(worked{1}, endpoint.In(done.tx))
		must(t, done.commit())
		undone := s.begin(100)
		r.send(worked{100}, endpoint.In(undone.tx))
		must(t, undone.rollback())
		r.send(worked{2}, endpoint.ViaOutbox())
		if n := s.count(); n > 0 {
			t.Fatalf("%d have arrived while the broker was away", n)
		}
		proxy.Resume()
		s.arrived(3)
		s.emptied(s.work)
		s.written(2)
		s.eventually("the message is completed", func() bool { return s.depth(s.conn, s.work) == 0 })
	})
}

// A message whose queue was deleted after the commit moves to the error queue, from which it can be
// sent where it was meant to go.
func TestDeletedDestinationOfOutbox(t *testing.T) {
	onOutboxes(t, func(t *testing.T, s *outboxShop) {
		proxy, away := s.throughProxy()
		gone := brokertest.Name(t, "gone")
		must(t, s.conn.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: gone}}}))
		r := start(t, s.working(away))
		r.send(worked{2}, endpoint.ViaOutbox(), endpoint.To(gone))
		s.eventually("the queue is known", func() bool { return s.depth(s.conn, gone) == 1 })
		proxy.Refuse()
		r.send(worked{1}, endpoint.ViaOutbox(), endpoint.To(gone))
		r.send(worked{0}, endpoint.ViaOutbox())
		must(t, s.conn.(transport.Remover).Remove(t.Context(), gone))
		proxy.Resume()
		s.arrived(1) // what was stored after the message is sent nevertheless
		s.emptied(s.work)
		receiver, err := s.conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: s.failed})
		must(t, err)
		defer receiver.Close()
		receiver.Window(10)
		ds, err := receiver.Receive(t.Context(), 10)
		must(t, err)
		m := ds[0].Message()
		if len(ds) != 1 || m.Headers.Get(header.FailedQ) != gone || string(m.Body) != `{"N":1}` {
			t.Errorf("the error queue has %d messages, the first with FailedQ %q and body %s", len(ds), m.Headers.Get(header.FailedQ), m.Body)
		}
		must(t, ds[0].Complete(t.Context()))
	})
}

// An audit queue that was deleted, or is full, has the copies moved to the error queue. Messages
// are handled as ever.
func TestAuditQueueTakesNothing(t *testing.T) {
	const limit = 9
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("full %t", full), func(t *testing.T) {
			t.Parallel()
			s := newOutboxShop(t, "postgres", brokertest.Postgres(t))
			audit := brokertest.Name(t, "audit")
			cfg := s.working(s.url)
			cfg.AuditQueue = audit
			start(t, cfg)
			s.send(s.work, 1)
			s.eventually("an audit copy", func() bool { return s.depth(s.conn, audit) == 1 })
			conn, err := amqp.Dial(s.url)
			must(t, err)
			defer conn.Close()
			ch, err := conn.Channel()
			must(t, err)
			_, err = ch.QueueDelete(audit, false, false, false)
			must(t, err)
			if full {
				limited := amqp.Table{"x-queue-type": "quorum", "x-max-length": limit, "x-overflow": "reject-publish"}
				_, err := ch.QueueDeclare(audit, true, false, false, false, limited)
				must(t, err)
				for range limit {
					must(t, ch.PublishWithContext(t.Context(), "", audit, false, false, amqp.Publishing{}))
				}
				s.eventually("a full queue", func() bool { return s.depth(s.conn, audit) == limit })
			}
			s.send(s.work, 10) // the first is recognized
			s.arrived(10)
			s.written(10)
			moved := int64(0)
			s.eventually("each copy is in the audit queue or in the error queue", func() bool {
				moved = s.depth(s.conn, s.failed)
				if full { // a limit is not exact
					return moved+s.depth(s.conn, audit)-limit == 9
				}
				return moved == 9
			})
			if moved == 0 {
				t.Error("the audit queue was not full")
			}
			s.emptied(s.work)
		})
	}
}

// The database is away under load, and its connections break: no message fails for that.
func TestDatabaseAwayUsesNoRetry(t *testing.T) {
	t.Parallel()
	place, err := url.Parse(brokertest.Postgres(t))
	must(t, err)
	proxy := brokertest.NewProxy(t, place.Host)
	s := newOutboxShop(t, "postgres", place.String())
	away := func(r *running) {
		proxy.Refuse()
		s.eventually("the outage is known", func() bool { return !r.Health().Ready })
		proxy.Resume()
	}
	cut := func(*running) { proxy.Cut() }
	s.disturbed(proxy.URL(t, place.String()), cut, away, cut, away)
}

// The database shuts down, ends at once and is killed under load: no message fails for that.
func TestChaosDatabaseRestartsUseNoRetry(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	node := brokertest.OwnPostgres(t)
	s := newOutboxShop(t, "postgres", node.URL)
	var restarts []func(*running)
	for range 3 {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGQUIT, os.Kill} {
			restarts = append(restarts, func(*running) { node.Restart(signal) })
		}
	}
	s.disturbed(node.URL, restarts...)
}

// disturbed disturbs the database at that place in each of the ways while messages are handled, and
// checks that each message has one row, and has sent one message, and that none has failed.
func (s *outboxShop) disturbed(place string, disturb ...func(r *running)) {
	s.t.Helper()
	messages := 150 * (len(disturb) + 1)
	database, err := openKillStore("postgres", place)
	must(s.t, err)
	defer database.Close()
	cfg := s.working(s.url)
	cfg.Outbox = database.transport()
	r := start(s.t, cfg)
	s.send(s.work, messages)
	for n := range disturb {
		s.eventually("some messages have arrived", func() bool { return s.count() >= messages*(n+1)/(len(disturb)+1) })
		disturb[n](r)
	}
	s.arrived(messages)
	s.emptied(s.work)
	s.written(messages)
	if n := s.depth(s.conn, s.failed); n > 0 {
		s.t.Errorf("the error queue has %d messages", n)
	}
}
