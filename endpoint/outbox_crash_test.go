package endpoint_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// The counterparts of NServiceBus's outbox tests that the other tests of the outbox are not.
// docs/conformance.md has the table.

// A process ends after the commit, before or after the broker has accepted what was stored: another
// one sends it, under the same ids, and the handler does not run again.
func TestWhatIsStoredIsSentAfterTheProcessHasEnded(t *testing.T) {
	for name, arrives := range map[string]int{"before dispatch": 1, "before the row is removed": 2} {
		t.Run(name, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				var over atomic.Bool
				broker.Fail = func(verb, object string) error {
					if !over.Load() && arrives == 1 && verb == "Dispatch" && object == "shipping" {
						return transport.ErrUnreachable
					}
					return nil
				}
				db.Fail = func(verb, object string) error {
					if !over.Load() && verb == "Complete" && object == "sales.outbox" {
						return transport.ErrUnreachable
					}
					return nil
				}
				var written harness.Tally
				first := harness.Start(t, storing(broker, db, &written))
				first.MustSend(harness.PlaceOrder{ID: "1"})
				time.Sleep(time.Second)
				first.End()
				if n := len(db.Messages("sales.outbox")); n != 1 {
					t.Fatalf("the outbox has %d messages, want 1", n)
				}
				over.Store(true)
				harness.Start(t, storing(broker, db, &written))
				time.Sleep(time.Second)
				var ids []string
				for _, m := range broker.Messages("shipping") {
					ids = append(ids, m.ID)
				}
				if len(ids) != arrives || len(slices.Compact(ids)) != 1 {
					t.Errorf("the messages %q arrived, want one id %d times", ids, arrives)
				}
				if n := len(db.Messages("sales.outbox")); n != 0 || len(written.List()) != 1 {
					t.Errorf("%d messages in the outbox, %d writes; want 0, 1", n, len(written.List()))
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
				cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
					return s.Send(ctx, harness.ShipOrder(o))
				}))
				cfg.Outbox, cfg.Recoverability = store, once
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
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

// What is stored when an endpoint stops is sent before Run returns.
func TestAStoppingEndpointEmptiesItsOutbox(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		r := harness.Start(t, storing(broker, db, new(harness.Tally)))
		for i := range 50 {
			r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(i)})
		}
		synctest.Wait()
		r.End()
		if n := len(db.Messages("sales.outbox")); n != 0 {
			t.Errorf("%d messages are left in the outbox", n)
		}
	})
}

// The outbox is switched off while rows are left in it: a send-only endpoint of the same name sends
// them.
func TestASendOnlyEndpointSendsWhatIsLeft(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		broker.Fail = func(verb, object string) error {
			if away.Load() && verb == "Dispatch" && object == "shipping" {
				return transport.ErrUnreachable
			}
			return nil
		}
		r := harness.Start(t, storing(broker, db, new(harness.Tally)))
		away.Store(true)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		time.Sleep(time.Second)
		r.End()
		if n := len(db.Messages("sales.outbox")); n != 1 {
			t.Fatalf("the outbox has %d messages, want 1", n)
		}
		away.Store(false)
		drain := endpoint.Config{Name: "sales", Transport: broker, Outbox: db, SendOnly: true}
		drained := harness.Start(t, drain)
		time.Sleep(10 * time.Second) // the depth is inspected every 5 s
		if h := drained.Health(); h.Outbox.Ready != 0 || h.Outbox.Unsettled != 0 || h.Outbox.Sent != 1 {
			t.Errorf("health is %+v", h.Outbox)
		}
		if n := len(broker.Messages("shipping")); n != 1 {
			t.Errorf("%d sent, want 1", n)
		}
	})
}

// A function of Config.Background may store a message at the very end: the relay ends after it.
func TestWhatABackgroundFunctionStoresLastIsSent(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := storing(broker, db, new(harness.Tally))
		cfg.Background = []func(context.Context, *endpoint.Endpoint){func(ctx context.Context, e *endpoint.Endpoint) {
			<-ctx.Done()
			time.Sleep(5 * time.Second)
			if err := e.Send(context.WithoutCancel(ctx), harness.ShipOrder{ID: "last"}, endpoint.ViaOutbox()); err != nil {
				t.Error(err)
			}
		}}
		harness.Start(t, cfg).End()
		if sent, left := len(broker.Messages("shipping")), len(db.Messages("sales.outbox")); sent != 1 || left != 0 {
			t.Errorf("%d sent, %d left in the outbox; want 1, 0", sent, left)
		}
	})
}

// When Run has returned, no goroutine of the relay is left.
func TestTheRelayLeavesNoGoroutine(t *testing.T) {
	for range 50 {
		withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
			harness.Start(t, storing(broker, db, new(harness.Tally))).End()
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			if strings.Contains(string(stacks), "outbox.(*Relay)") {
				t.Fatalf("a goroutine of the relay is left:\n%s", stacks)
			}
		})
	}
}
