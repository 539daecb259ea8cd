package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// inspected is a transport whose database has a table of records, or not.
type inspected struct {
	*inmemory.Transport
	missing bool

	mu    sync.Mutex // guards the rest
	kinds []string   // installed
}

func (i *inspected) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := i.Transport.Open(ctx, env)
	return inspectedConn{conn, conn.(transport.Installer), i}, err
}

type inspectedConn struct {
	transport.Conn
	installer transport.Installer
	of        *inspected
}

func (c inspectedConn) Install(ctx context.Context, plan transport.Plan) error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.kinds = append(c.of.kinds, plan.Records...)
	return c.installer.Install(ctx, plan)
}

func (c inspectedConn) InspectRecords(context.Context, string) (stats transport.RecordStats, err error) {
	if c.of.missing {
		err = transport.ErrNoQueue
	}
	return stats, err
}

func (inspectedConn) Records(context.Context, transport.RecordPage) ([]transport.Record, error) {
	return nil, nil
}

func (inspectedConn) Record(context.Context, transport.RecordID) (transport.Record, error) {
	return transport.Record{}, transport.ErrNoRecord
}
func (inspectedConn) RemoveRecord(context.Context, transport.RecordID) error { return nil }

// byID is the key of an order.
func byID(m stateful.Message) (string, error) {
	return stateful.As[harness.PlaceOrder](m.Value).ID, nil
}

// shop is a declaration of the owner "shop".
var shop = stateful.Declaration{Owner: "shop", Kind: "shop", Func: placed, Key: byID}

func placed(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil }

// atomically is sales in the mode SendsAtomicWithReceive.
func atomically(t transport.Transport, handlers ...endpoint.Handler) endpoint.Config {
	cfg := harness.Sales(t, handlers...)
	cfg.Transactions, cfg.Recoverability = endpoint.SendsAtomicWithReceive, once
	return cfg
}

func TestNewReportsMistakesInHandlersWithState(t *testing.T) {
	broker := &inmemory.Transport{}
	for name, test := range map[string]struct {
		mode    endpoint.TransactionMode
		declare func(d *stateful.Declaration)
		want    string
	}{
		"no database":       {endpoint.ReceiveOnly, func(*stateful.Declaration) {}, "set Outbox, or Transactions to SendsAtomicWithReceive"},
		"no name":           {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Kind = "" }, "the name is empty"},
		"an @":              {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Kind = "a@b" }, `the name "a@b" has a character`},
		"a NUL":             {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Kind = "a\x00" }, "has a character"},
		"no UTF-8":          {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Kind = "a\xff" }, "has a character"},
		"a long name":       {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Kind = strings.Repeat("a", 201) }, "201 bytes"},
		"no owner":          {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Owner = nil }, "no owner"},
		"not comparable":    {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Owner = []int{} }, "no owner"},
		"no key":            {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Key = nil }, "no function for the key"},
		"its own mistake":   {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Err = errNo }, errNo.Error()},
		"two of one name":   {endpoint.SendsAtomicWithReceive, func(d *stateful.Declaration) { d.Owner = "other" }, "two parts of the program"},
		"a handler twice":   {endpoint.SendsAtomicWithReceive, func(*stateful.Declaration) {}, "add each once"},
		"and all, together": {endpoint.ReceiveOnly, func(d *stateful.Declaration) { d.Owner = "other" }, "two parts of the program"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := shop
			test.declare(&wrong)
			cfg := atomically(broker, endpoint.Handle(placed).Stateful(shop), endpoint.Handle(placed).Stateful(wrong))
			cfg.Transactions = test.mode
			_, err := endpoint.New(cfg)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("New: %v, want %q", err, test.want)
			}
			if test.mode == endpoint.ReceiveOnly && !strings.Contains(fmt.Sprint(err), "set Outbox") {
				t.Errorf("New: %v, want the missing database too", err)
			}
		})
	}
}

func TestTheKindsOfRecordsAreInstalledOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		db := &inspected{Transport: broker}
		other := stateful.Declaration{Owner: "stock", Kind: "a stock", Func: placed, Key: byID}
		shipped := endpoint.Handle(func(context.Context, *endpoint.Session, harness.ShipOrder) error { return nil })
		harness.Start(t, atomically(db, endpoint.Handle(placed).Stateful(shop), endpoint.Handle(placed), shipped.Stateful(shop),
			endpoint.Handle(placed).Stateful(other)))
		if diff := cmp.Diff([]string{"a stock@sales", "shop@sales"}, db.kinds); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRunRefusesADatabaseWithoutRecords(t *testing.T) {
	for name, test := range map[string]struct {
		db      func(*inmemory.Transport) transport.Transport
		install bool
		want    string
	}{
		"it cannot, at install": {func(b *inmemory.Transport) transport.Transport { return plain{b} }, true, "install: there are handlers with state, and"},
		"it cannot":             {func(b *inmemory.Transport) transport.Transport { return plain{b} }, false, "the database cannot store it"},
		"the table is missing": {
			func(b *inmemory.Transport) transport.Transport { return &inspected{Transport: b, missing: true} }, false,
			`records of "shop@sales": ` + transport.ErrNoQueue.Error() + ": create the table",
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.CreateQueues("sales", "error")
				cfg := atomically(test.db(broker), endpoint.Handle(placed).Stateful(shop))
				cfg.Install = test.install
				e, err := endpoint.New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				if err := e.Run(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("Run: %v, want %q", err, test.want)
				}
			})
		})
	}
}

// plain is a transport whose connections have no table of records.
type plain struct{ *inmemory.Transport }

func (p plain) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := p.Transport.Open(ctx, env)
	return struct {
		transport.Conn
		transport.Installer
	}{conn, conn.(transport.Installer)}, err
}

func TestAHandlerWithStateKnowsItsCallAndAddsHeaders(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		send := func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			call := stateful.CallOf(ctx)
			if call == nil {
				calls.Add("no call")
			} else {
				calls.Add(fmt.Sprint(call.Endpoint, " ", call.Kind, " ", call.Key, " ", call.Receive.Queue, " ", call.Remember))
				call.SetOutgoing(header.OriginatingSagaID, call.Key)
				call.SetOutgoing("own", "no")
			}
			return s.Send(ctx, harness.ShipOrder(m), endpoint.Header("own", "yes"))
		}
		harness.Start(t, atomically(&inspected{Transport: broker}, endpoint.Handle(send), endpoint.Handle(send).Stateful(shop), endpoint.Handle(send))).
			MustSend(harness.PlaceOrder{ID: "1"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]string{"no call", "sales shop@sales 1 sales 168h0m0s", "no call"}, calls.List()); diff != "" {
			t.Error(diff)
		}
		var sagas []string
		for _, m := range broker.Messages("shipping") {
			sagas = append(sagas, m.Headers.Get(header.OriginatingSagaID)+" "+m.Headers.Get("own"))
		}
		if diff := cmp.Diff([]string{" yes", "1 yes", " yes"}, sagas); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAKeyFunctionMayFail(t *testing.T) {
	for name, test := range map[string]struct {
		key  func(stateful.Message) (string, error)
		want string
	}{
		"an error": {func(stateful.Message) (string, error) { return "", recoverability.Unrecoverable(errNo) }, "endpoint_test.placed: " + errNo.Error()},
		"a panic":  {func(stateful.Message) (string, error) { panic(errors.New("no key")) }, "panic: no key"},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				d := shop
				d.Key = test.key
				harness.Start(t, atomically(&inspected{Transport: broker}, endpoint.Handle(placed).Stateful(d))).MustSend(harness.PlaceOrder{ID: "1"})
				time.Sleep(time.Minute)
				synctest.Wait()
				failed := broker.Messages("error")
				if len(failed) != 1 || !strings.Contains(failed[0].Headers.Get(header.ExceptionMessage), test.want) {
					t.Errorf("%d failed, want one with %q: %v", len(failed), test.want, failed)
				}
			})
		})
	}
}
