package endpoint_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

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
			cfg := harness.Sales(&inmemory.Transport{}, failing(new(harness.Tally)))
			test.change(&cfg)
			if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, want one with %q", err, test.want)
			}
		})
	}
	t.Run("not a database", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg := harness.Sales(&inmemory.Transport{}, failing(new(harness.Tally)))
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
			cfg := harness.Sales(broker, failing(new(harness.Tally)))
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

func TestForwardingToTheOwnQueueIsRefusedWithAnInbox(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var refused harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			if err := s.Forward(ctx, "sales"); err != nil {
				refused.Add(err.Error())
			}
			return s.Forward(ctx, "other")
		}))
		cfg.Outbox = db
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		time.Sleep(time.Second)
		if len(refused.List()) != 1 || len(broker.Messages("other")) != 1 {
			t.Errorf("refused %q, %d forwarded", refused.List(), len(broker.Messages("other")))
		}
	})
}

func TestAMistakeInTheRelayStageIsOneOfTheConfiguration(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := storing(broker, db, new(harness.Tally))
		cfg.Pipeline.Relay.Remove("unknown")
		if _, err := endpoint.New(cfg); err == nil {
			t.Error("a stage that removes an unknown behavior is accepted")
		}
	})
}

func TestTheSizeOfTheInboxAndALeftoverOutboxAreLogged(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var log strings.Builder
		cfg := storing(broker, db, new(harness.Tally))
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		r := harness.Start(t, cfg)
		synctest.Wait()
		r.End()
		if want := `inbox=sales.handled remember=168h0m0s ids=0 bytes=`; !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, &log)
		}
		log.Reset()
		again := harness.Sales(db)
		again.Logger = cfg.Logger
		db.CreateQueues("shipping", "sales.outbox")
		if err := db.Put("sales.outbox", &transport.Message{ID: "1"}); err != nil {
			t.Fatal(err)
		}
		harness.Start(t, again)
		synctest.Wait()
		if !strings.Contains(log.String(), "holdfast outbox drain") {
			t.Errorf("nothing was logged of the messages in the outbox:\n%s", &log)
		}
	})
}
