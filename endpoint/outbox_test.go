package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// withOutbox runs f in a bubble with a broker and the database of an outbox.
func withOutbox(t *testing.T, f func(t *testing.T, broker, db *inmemory.Transport)) {
	t.Helper()
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) { f(t, broker, &inmemory.Transport{}) })
}

// storing is a configuration with an outbox, whose handler writes and sends.
func storing(broker, db *inmemory.Transport, written *tally) endpoint.Config {
	cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
		if err := inmemory.OnCommit(ctx, s, func() { written.add(o.ID) }); err != nil {
			return err
		}
		return s.Send(ctx, shipOrder(o))
	}))
	cfg.Outbox = db
	return cfg
}

// bodies returns the bodies of the messages in a queue.
func bodies(broker *inmemory.Transport, queue string) (all []string) {
	for _, m := range broker.Messages(queue) {
		all = append(all, string(m.Body))
	}
	return all
}

func TestAnOutboxCommitsWritesAndSendsTogether(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written tally
		r := start(t, storing(broker, db, &written))
		r.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1"))
		time.Sleep(time.Second)
		if diff := cmp.Diff([]string{"1"}, written.list()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{`{"ID":"1"}`}, bodies(broker, "shipping")); diff != "" {
			t.Error(diff)
		}
		if n := len(db.Messages("sales.outbox")) + len(broker.Messages("sales")); n != 0 {
			t.Errorf("%d messages are left in the outbox and the endpoint's queue", n)
		}
	})
}

func TestAnOutboxKeepsTheOrderAndTheHeadersOfSends(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			for i := range 300 {
				if err := s.Send(ctx, shipOrder{ID: fmt.Sprint(i)}, endpoint.Header("n", fmt.Sprint(i))); err != nil {
					return err
				}
			}
			return nil
		}))
		cfg.Outbox = db
		start(t, cfg).send(placeOrder{ID: "1"})
		time.Sleep(time.Second)
		sent := broker.Messages("shipping")
		if len(sent) != 300 {
			t.Fatalf("%d messages were sent, want 300", len(sent))
		}
		for i, m := range sent {
			if want := fmt.Sprintf(`{"ID":"%d"}`, i); string(m.Body) != want || m.Headers.Get("n") != fmt.Sprint(i) || m.ID != m.Headers.Get(header.MessageID) {
				t.Fatalf("message %d is %s with header %q and id %q", i, m.Body, m.Headers.Get("n"), m.ID)
			}
		}
	})
}

// A failure before the commit leaves nothing, and a failure after it concerns the message no more.
func TestAFailedHandlerStoresNothing(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written tally
		var tries atomic.Int32
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.add(o.ID) }); err != nil {
				return err
			}
			if err := s.Send(ctx, shipOrder(o)); err != nil {
				return err
			}
			if tries.Add(1) < 3 {
				return errNo
			}
			return nil
		}))
		cfg.Outbox = db
		start(t, cfg).send(placeOrder{ID: "1"})
		time.Sleep(time.Second)
		if tries.Load() != 3 || len(written.list()) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Errorf("%d tries, %d writes, %d sent; want 3, 1, 1", tries.Load(), len(written.list()), len(broker.Messages("shipping")))
		}
	})
}

func TestASecondDeliveryIsCompletedAndNotHandled(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written tally
		cfg := storing(broker, db, &written)
		var lose atomic.Bool
		lose.Store(true)
		broker.Fail = func(verb, object string) error { // the acknowledgement is lost, and the lease ends
			if verb == "Complete" && lose.Load() {
				return transport.ErrOutcomeUnknown
			}
			return nil
		}
		first := start(t, cfg)
		first.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1"))
		time.Sleep(time.Minute)
		lose.Store(false)
		first.end()
		r := start(t, cfg)
		time.Sleep(10 * time.Minute)
		r.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1")) // sent twice by its sender
		time.Sleep(time.Minute)
		if len(written.list()) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Errorf("%d writes, %d sent; want 1, 1", len(written.list()), len(broker.Messages("shipping")))
		}
		if n := len(broker.Messages("sales")) + len(broker.Messages("error")) + len(broker.Messages("sales.quarantine")); n != 0 {
			t.Errorf("%d messages are left", n)
		}
		if h := r.Health(); h.Outbox == nil || h.Outbox.Duplicates != 2 {
			t.Errorf("health is %+v", h.Outbox)
		}
	})
}

func TestADifferentMessageWithTheSameIDFails(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written tally
		r := start(t, storing(broker, db, &written))
		r.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1"))
		time.Sleep(time.Second)
		r.send(placeOrder{ID: "2"}, endpoint.MessageID("m-1"))
		time.Sleep(time.Second)
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get(header.HoldfastFaultClass) != "same-id" {
			t.Fatalf("%d messages in the error queue: %v", len(failed), failed)
		}
		if diff := cmp.Diff([]string{"1"}, written.list()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAMessageWithoutAnIDIsHandledAtEachDelivery(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written tally
		start(t, storing(broker, db, &written))
		for range 2 {
			m := &transport.Message{Body: []byte(`{"ID":"1"}`)}
			m.Headers.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
			if err := broker.Put("sales", m); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if n := len(broker.Messages("shipping")); n != 2 {
			t.Errorf("%d sent, want 2", n)
		}
	})
}

// The number of a row identifies its message only until the database is restored, or the table is created anew.
func TestTheNumberOfARowIsNoID(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var tries atomic.Int32
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			if tries.Add(1)%2 == 1 { // so that the second attempt is at a copy
				return recoverability.RetryAfter(errNo, time.Second)
			}
			return s.Send(ctx, shipOrder(o))
		}))
		cfg.Outbox = db
		r := start(t, cfg)
		for range 2 {
			m := &transport.Message{NativeID: "17", Body: []byte(`{"ID":"1"}`)}
			m.Headers.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
			if err := broker.Put("sales", m); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
		}
		if n, h := len(broker.Messages("shipping")), r.Health(); n != 2 || h.Outbox.Duplicates != 0 {
			t.Errorf("%d sent and %d recognized, want 2, 0", n, h.Outbox.Duplicates)
		}
	})
}

// While the database is away nothing is handled, no retry is used up, and afterwards all goes on.
func TestAnUnreachableDatabaseUsesUpNoRetry(t *testing.T) {
	for _, verb := range []string{"FindHandled", "BeginStore", "Store"} {
		t.Run(verb, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				var away atomic.Bool
				db.Fail = func(v, _ string) error {
					if away.Load() && (v == verb || verb == "FindHandled") {
						return fmt.Errorf("%w: the database restarts", transport.ErrUnreachable)
					}
					return nil
				}
				var written tally
				cfg := storing(broker, db, &written)
				cfg.Recoverability = once
				r := start(t, cfg)
				away.Store(true)
				for i := range 20 {
					r.send(placeOrder{ID: fmt.Sprint(i)})
				}
				time.Sleep(time.Hour)
				if h := r.Health(); h.Ready || !strings.Contains(strings.Join(h.Reasons, ";"), "the outbox has not been usable") {
					t.Errorf("health is %+v", h)
				}
				if n := len(broker.Messages("error")); n > 0 {
					t.Fatalf("%d messages are in the error queue", n)
				}
				away.Store(false)
				time.Sleep(time.Minute)
				if n, sent := len(written.list()), len(broker.Messages("shipping")); n != 20 || sent != 20 {
					t.Errorf("%d writes, %d sent, want 20", n, sent)
				}
				if h := r.Health(); !h.Ready {
					t.Errorf("health is %+v", h)
				}
			})
		})
	}
}

// A commit whose answer is lost is looked for, and not repeated where it had its effect.
func TestACommitWithAnUnknownOutcomeIsLookedFor(t *testing.T) {
	for _, committed := range []bool{true, false} {
		t.Run(fmt.Sprint("committed ", committed), func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				store := &doubting{Transport: db, committed: committed}
				cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
					return s.Send(ctx, shipOrder(o))
				}))
				cfg.Outbox, cfg.Recoverability = store, once
				start(t, cfg).send(placeOrder{ID: "1"})
				time.Sleep(time.Minute)
				commits := int32(2)
				if committed {
					commits = 1
				}
				if sent := len(broker.Messages("shipping")); sent != 1 || store.doubts.Load() != commits {
					t.Errorf("%d sent, %d commits; want 1, %d", sent, store.doubts.Load(), commits)
				}
			})
		})
	}
}

// doubting is a database whose first commit has an unknown outcome.
type doubting struct {
	*inmemory.Transport
	committed bool
	doubts    atomic.Int32
}

func (d *doubting) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := d.Transport.Open(ctx, env)
	return &doubtingConn{conn.(store), d}, err
}

type store interface {
	transport.Conn
	transport.OutboxStore
	transport.Installer
	transport.Inspector
}

type doubtingConn struct {
	store
	of *doubting
}

func (c *doubtingConn) Store(ctx context.Context, e transport.OutboxEntry) error {
	if c.of.doubts.Add(1) > 1 {
		return c.store.Store(ctx, e)
	}
	if c.of.committed {
		if err := c.store.Store(ctx, e); err != nil {
			return err
		}
	}
	return transport.ErrOutcomeUnknown
}

func TestARefusedMessageOfTheOutboxMovesToTheErrorQueue(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var refuse atomic.Bool
		broker.Fail = func(verb, object string) error {
			if refuse.Load() && verb == "Dispatch" && object == "shipping" {
				return transport.ErrNoQueue
			}
			return nil
		}
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			refuse.Store(true) // it was there when the message was stored
			return errors.Join(s.Send(ctx, shipOrder(o)), s.Send(ctx, shipOrder{ID: "other"}, endpoint.To("other")))
		}))
		cfg.Outbox = db
		r := start(t, cfg)
		r.send(placeOrder{ID: "1"})
		time.Sleep(time.Second)
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get(header.FailedQ) != "shipping" || failed[0].Headers.Get(header.HoldfastFaultClass) != "undeliverable" {
			t.Fatalf("the error queue has %d messages: %v", len(failed), failed)
		}
		if len(broker.Messages("other")) != 1 || len(db.Messages("sales.outbox")) != 0 {
			t.Error("the other message was not sent, or the outbox is not empty")
		}
		if h := r.Health(); h.Outbox.Refused != 1 {
			t.Errorf("health is %+v", h.Outbox)
		}
	})
}

func TestAMissingDestinationFailsTheMessageBeforeTheCommit(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written tally
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.add(o.ID) }); err != nil {
				return err
			}
			return s.Send(ctx, shipOrder(o), endpoint.To("nowhere"))
		}))
		cfg.Outbox, cfg.Recoverability = db, once
		start(t, cfg).send(placeOrder{ID: "1"})
		time.Sleep(time.Second)
		if len(broker.Messages("error")) != 1 || len(written.list()) != 0 {
			t.Errorf("%d failed, %d writes; want 1, 0", len(broker.Messages("error")), len(written.list()))
		}
	})
}

// The broker is away: messages are handled and stored, and sent when it is back.
func TestAnOutboxSendsWhenTheBrokerIsBack(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		broker.Fail = func(verb, object string) error {
			if away.Load() && verb == "Dispatch" && object == "shipping" {
				return transport.ErrUnreachable
			}
			return nil
		}
		r := start(t, storing(broker, db, new(tally)))
		away.Store(true)
		r.send(placeOrder{ID: "1"})
		for i := range 3 {
			if err := r.Send(t.Context(), shipOrder{ID: fmt.Sprint("via ", i)}, endpoint.ViaOutbox()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Second)
		if n := len(broker.Messages("shipping")); n != 0 {
			t.Fatalf("%d sent while the broker is away", n)
		}
		away.Store(false)
		time.Sleep(10 * time.Second)
		if n := len(broker.Messages("shipping")); n != 4 {
			t.Errorf("%d sent, want 4", n)
		}
	})
}

func TestABacklogStopsHandling(t *testing.T) {
	for _, remember := range []time.Duration{0, endpoint.None} {
		t.Run(fmt.Sprint("remember ", remember), func(t *testing.T) { backlogStopsHandling(t, remember) })
	}
}

func backlogStopsHandling(t *testing.T, remember time.Duration) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		broker.Fail = func(verb, object string) error {
			if away.Load() && verb == "Dispatch" && object == "shipping" {
				return transport.ErrUnreachable
			}
			return nil
		}
		var written tally
		cfg := storing(broker, db, &written)
		cfg.Concurrency, cfg.Remember = 1, remember
		r := start(t, cfg)
		away.Store(true)
		for i := range 10 {
			if err := r.Send(t.Context(), shipOrder{ID: fmt.Sprint(i)}, endpoint.ViaOutbox()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Minute)
		r.send(placeOrder{ID: "held"})
		time.Sleep(time.Minute)
		if len(written.list()) != 0 {
			t.Error("a message was handled while the outbox has a backlog")
		}
		away.Store(false)
		time.Sleep(2 * time.Minute)
		if n := len(broker.Messages("shipping")); n != 11 {
			t.Errorf("%d sent, want 11", n)
		}
	})
}

func TestWithAnOutboxAFinalFailureCommitsItsWritesBeforeTheMove(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written tally
		cfg := sales(broker, failing(new(tally)))
		cfg.Outbox, cfg.Recoverability = db, once
		cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, f recoverability.Failure) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.add(f.MessageID) }); err != nil {
				return err
			}
			return s.Send(ctx, shipOrder{ID: "sorry"})
		}
		r := start(t, cfg)
		r.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1"))
		time.Sleep(time.Second)
		if len(written.list()) != 1 || len(broker.Messages("error")) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Errorf("%d writes, %d failed, %d sent; want 1 each", len(written.list()), len(broker.Messages("error")), len(broker.Messages("shipping")))
		}
		// It failed, so its id is not recorded: a return from the error queue is handled.
		if err := broker.Put("sales", broker.Messages("error")[0]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if len(written.list()) != 2 {
			t.Error("a message that was returned from the error queue was taken for a message that was handled")
		}
	})
}

func TestAuditCopiesAreStoredAndTheirQueueMayBeMissing(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var refuse atomic.Bool
		broker.Fail = func(verb, object string) error {
			if refuse.Load() && verb == "Dispatch" && object == "audit" {
				return transport.ErrNoQueue
			}
			return nil
		}
		var written tally
		cfg := storing(broker, db, &written)
		cfg.AuditQueue = "audit"
		r := start(t, cfg)
		r.send(placeOrder{ID: "1"})
		time.Sleep(time.Second)
		refuse.Store(true)
		r.send(placeOrder{ID: "2"})
		time.Sleep(time.Second)
		if len(written.list()) != 2 || len(broker.Messages("shipping")) != 2 || len(broker.Messages("audit")) != 1 || len(broker.Messages("error")) != 1 {
			t.Errorf("%d writes, %d sent, %d audit copies, %d in the error queue; want 2, 2, 1, 1", len(written.list()),
				len(broker.Messages("shipping")), len(broker.Messages("audit")), len(broker.Messages("error")))
		}
	})
}

func TestASendOnlyEndpointRelays(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := sales(broker)
		cfg.SendOnly, cfg.Outbox = true, db
		r := start(t, cfg)
		if err := r.Send(t.Context(), shipOrder{ID: "1"}, endpoint.ViaOutbox()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := len(broker.Messages("shipping")); n != 1 {
			t.Errorf("%d sent, want 1", n)
		}
	})
}

// What is stored when an endpoint stops is sent before Run returns.
func TestAStoppingEndpointEmptiesItsOutbox(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		r := start(t, storing(broker, db, new(tally)))
		for i := range 50 {
			r.send(placeOrder{ID: fmt.Sprint(i)})
		}
		synctest.Wait()
		r.end()
		if n := len(db.Messages("sales.outbox")); n != 0 {
			t.Errorf("%d messages are left in the outbox", n)
		}
	})
}

func TestForwardingToTheOwnQueueIsRefusedWithAnInbox(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var refused tally
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
			if err := s.Forward(ctx, "sales"); err != nil {
				refused.add(err.Error())
			}
			return s.Forward(ctx, "other")
		}))
		cfg.Outbox = db
		start(t, cfg).send(placeOrder{ID: "1"})
		time.Sleep(time.Second)
		if len(refused.list()) != 1 || len(broker.Messages("other")) != 1 {
			t.Errorf("refused %q, %d forwarded", refused.list(), len(broker.Messages("other")))
		}
	})
}

func TestAnInboxInAtomicModeRecognizesDuplicates(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var written tally
		var fails atomic.Bool
		fails.Store(true)
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.add(o.ID) }); err != nil {
				return err
			}
			if fails.Swap(false) {
				return errNo
			}
			return s.Send(ctx, shipOrder(o))
		}))
		cfg.Transactions, cfg.Remember = endpoint.SendsAtomicWithReceive, 24*time.Hour
		cfg.Recoverability.Immediate = recoverability.None // the delayed copy has the same id
		r := start(t, cfg)
		for range 2 {
			r.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1"))
			time.Sleep(time.Hour)
		}
		if len(written.list()) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Errorf("%d writes, %d sent; want 1, 1", len(written.list()), len(broker.Messages("shipping")))
		}
		if n := len(broker.Messages("sales")) + len(broker.Messages("error")); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

func TestConfigurationsWithAnOutboxThatCannotWork(t *testing.T) {
	db := &inmemory.Transport{}
	for name, test := range map[string]struct {
		change func(*endpoint.Config)
		want   string
	}{
		"atomic":   {func(c *endpoint.Config) { c.Outbox, c.Transactions = db, endpoint.SendsAtomicWithReceive }, "leave Outbox out"},
		"none":     {func(c *endpoint.Config) { c.Outbox, c.Transactions = db, endpoint.None }, "Transactions is None"},
		"short":    {func(c *endpoint.Config) { c.Outbox, c.Remember = db, time.Hour }, "at least 24h"},
		"negative": {func(c *endpoint.Config) { c.Outbox, c.Remember = db, -time.Hour }, "use None"},
		"useless":  {func(c *endpoint.Config) { c.Remember = 48 * time.Hour }, "set Outbox"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sales(&inmemory.Transport{}, failing(new(tally)))
			test.change(&cfg)
			if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, want one with %q", err, test.want)
			}
		})
	}
	t.Run("not a database", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg := sales(&inmemory.Transport{}, failing(new(tally)))
			cfg.Outbox = &inmemory.Transport{Without: inmemory.OutboxStore}
			e, err := endpoint.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be an outbox") {
				t.Errorf("Run returned %v", err)
			}
		})
	})
	t.Run("missing tables", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			broker := &inmemory.Transport{}
			broker.CreateQueues("sales", "error", "sales.quarantine")
			cfg := sales(broker, failing(new(tally)))
			cfg.Outbox, cfg.Install = db, false
			e, err := endpoint.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Run(t.Context()); !errors.Is(err, transport.ErrNoQueue) || !strings.Contains(err.Error(), "Config.Install") {
				t.Errorf("Run returned %v", err)
			}
		})
	})
}

func TestTheSizeOfTheInboxAndALeftoverOutboxAreLogged(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var log strings.Builder
		cfg := storing(broker, db, new(tally))
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		r := start(t, cfg)
		synctest.Wait()
		r.end()
		if want := `inbox=sales.handled remember=168h0m0s ids=0 bytes=`; !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, &log)
		}
		log.Reset()
		again := sales(db)
		again.Logger = cfg.Logger
		db.CreateQueues("shipping", "sales.outbox")
		if err := db.Put("sales.outbox", &transport.Message{ID: "1"}); err != nil {
			t.Fatal(err)
		}
		start(t, again)
		synctest.Wait()
		if !strings.Contains(log.String(), "holdfast outbox drain") {
			t.Errorf("nothing was logged of the messages in the outbox:\n%s", &log)
		}
	})
}
