package torture

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// outboxVariable is the file of the outbox of a worker; none without one.
const outboxVariable = "HOLDFAST_TORTURE_OUTBOX"

// rowFaults are faults of the outbox, by the kind of the worker.
var rowFaults = map[string]fault{"forgets": forgets, "haunts": haunts}

// ofSeven reports whether a delivery from the outbox is the row of job 7.
func ofSeven(d transport.Delivery) bool { return bytes.Contains(d.Message().Body, []byte(`{"N":7}`)) }

// forgets completes a row of the outbox that was not sent.
func forgets(ctx context.Context, _ transport.Conn, d transport.Delivery) (bool, error) {
	if !ofSeven(d) {
		return true, nil
	}
	return false, d.Complete(ctx)
}

// haunts sends the message of a row under a second id too.
func haunts(ctx context.Context, conn transport.Conn, d transport.Delivery) (bool, error) {
	if !ofSeven(d) {
		return true, nil
	}
	e, err := envelope.Decode(d.Message().Body)
	if err != nil || e.Ops[0].Message.ID == "ghost" {
		return true, err
	}
	queue := strings.TrimSuffix(e.Ops[0].Queue, ".receipts") + ".outbox"
	e.Ops[0].Message.ID = "ghost"
	e.Ops[0].Message.Headers.Set("NServiceBus.MessageId", "ghost")
	m := &transport.Message{ID: "ghost", Body: envelope.Encode(e.Ops, e.Encoded, 0)[0]}
	_, err = conn.Dispatch(ctx, []transport.Operation{{Message: m, Queue: queue}})
	return true, err
}

// faultyOutbox is a database with a fault that torture must find.
type faultyOutbox struct {
	transport.Transport
	fault fault
}

func (f *faultyOutbox) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := f.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	store, ok := conn.(transport.OutboxStore)
	if !ok {
		return nil, errors.Join(errors.New("no outbox store"), conn.Close())
	}
	return struct {
		*faultyConn
		transport.OutboxStore
	}{&faultyConn{conn, f.fault}, store}, nil
}

// prepareOutbox makes a bed whose workers are of that kind and have an outbox.
func prepareOutbox(t *testing.T, kind string) *bed {
	b := prepare(t, kind)
	path := b.path + "-outbox"
	b.Mode, b.Outbox, b.Table = Outbox, file(path, time.Second), testbed.TableOf(file(path, time.Second))
	b.env = []string{outboxVariable + "=" + path}
	return b
}

func TestASoundOutboxStandsKills(t *testing.T) {
	t.Parallel()
	b := prepareOutbox(t, "sound")
	b.Load = withKills(b.Load)
	r, err := Run(t.Context(), b.Options)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || r.Processed != b.Messages || r.Kills == 0 || r.MaxAttempts < 2 || r.Outbox == nil || r.Outbox.Rows != b.Messages || r.Outbox.Arrived != b.Messages {
		t.Errorf("%+v, %+v", r, r.Outbox)
	}
	if left := b.queues(t); len(left) > 0 {
		t.Errorf("left the queues %v", left)
	}
	b.path += "-outbox"
	if left := b.queues(t); len(left) > 0 {
		t.Errorf("left in the database of the outbox: %v", left)
	}
}

// Without an outbox it is handled twice.
func TestAnOutboxHandlesADoubleDeliveryOnce(t *testing.T) {
	t.Parallel()
	b := prepareOutbox(t, "doubles")
	r, err := Run(t.Context(), b.Options)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || r.HandledTwice != 0 || r.Outbox.Rows != b.Messages || r.Outbox.Arrived != b.Messages {
		t.Errorf("%+v, %+v", r, r.Outbox)
	}
}

func TestAFaultOfTheOutboxIsFound(t *testing.T) {
	for kind, invariant := range map[string]string{"forgets": "missing", "haunts": "ghosts"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := prepareOutbox(t, kind)
			r, err := Run(t.Context(), b.Options)
			if err != nil {
				t.Fatalf("%v\n%s", err, &b.progress)
			}
			if len(r.Broken) != 1 || !strings.HasPrefix(r.Broken[0].Invariant, invariant) ||
				len(r.Broken[0].Messages) != 1 || !strings.HasSuffix(r.Broken[0].Messages[0], "-7") {
				t.Errorf("broken: %v\n%s", r.Broken, &b.progress)
			}
		})
	}
}

func TestAnOutboxNeedsItsDatabase(t *testing.T) {
	b := prepareOutbox(t, "sound")
	b.Outbox = nil
	if _, err := Run(t.Context(), b.Options); err == nil || !strings.Contains(err.Error(), "no database of the outbox") {
		t.Errorf("no database: %v", err)
	}
	b.Outbox = &withoutInspector{&inmemory.Transport{}}
	if _, err := Run(t.Context(), b.Options); err == nil || !strings.Contains(err.Error(), "cannot count its messages") {
		t.Errorf("no inspector: %v", err)
	}
}
