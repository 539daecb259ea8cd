package inmemory_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

var errForeign = errors.New("not one of ours")

func TestConformance(t *testing.T) {
	for name, setUp := range map[string]func(*inmemory.Transport){
		"whole":  func(*inmemory.Transport) {},
		"leases": func(t *inmemory.Transport) { t.Lease = max(t.Lease, time.Second) },
		"bounds": func(t *inmemory.Transport) {
			t.MaxBody, t.MaxHeaders, t.MaxReceive, t.MaxDelay = 64<<10, 8<<10, 20, time.Hour
		},
		"little":      func(t *inmemory.Transport) { t.Without = everything },
		"no counting": func(t *inmemory.Transport) { t.Without = inmemory.Exact | inmemory.FreeRelease },
		"no units":    func(t *inmemory.Transport) { t.Without = inmemory.Completer | inmemory.Transactor },
	} {
		t.Run(name, func(t *testing.T) { transporttest.Run(t, harness(setUp)) })
	}
}

const everything = inmemory.Installer | inmemory.Subscriber | inmemory.Inspector |
	inmemory.Completer | inmemory.Transactor | inmemory.DeadLetterer |
	inmemory.Delay | inmemory.Exact | inmemory.FreeRelease | inmemory.ByteReceiver | inmemory.OutboxStore

// harness opens brokers set up like a template.
func harness(setUp func(*inmemory.Transport)) transporttest.Harness {
	open := func(lease time.Duration) func(testing.TB) transport.Transport {
		return func(testing.TB) transport.Transport {
			t := &inmemory.Transport{Lease: lease}
			setUp(t)
			return t
		}
	}
	return transporttest.Harness{
		Open:           open(0),
		ShortLease:     open(time.Second),
		CreateQueue:    func(_ testing.TB, t transport.Transport, name string) { t.(*inmemory.Transport).CreateQueues(name) },
		PutUndecodable: putUndecodable,
		Write:          write,
		Sweep:          func(testing.TB, transport.Transport, string) {},
		Bubble:         true,
	}
}

// write writes to memory with OnCommit.
func write(t testing.TB, _ transport.Transport, tx transport.HandlerTx) func() bool {
	t.Helper()
	var written atomic.Bool
	if err := inmemory.OnCommit(t.Context(), given{tx}, func() { written.Store(true) }); err != nil {
		t.Error(err)
	}
	return written.Load
}

// given is a session of the endpoint with a transaction.
type given struct{ tx transport.HandlerTx }

func (s given) Tx(context.Context) (transport.HandlerTx, error) { return s.tx, nil }

func putUndecodable(t testing.TB, tr transport.Transport, queue string) {
	t.Helper()
	m := &transport.Message{ID: "foreign", Body: []byte("\xff"), Undecodable: errForeign}
	if err := tr.(*inmemory.Transport).Put(queue, m); err != nil {
		t.Error(err)
	}
}
