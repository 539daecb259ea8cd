package nservicebus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
)

func connect(t *testing.T) *pgx.Conn {
	t.Helper()
	db, err := pgx.Connect(t.Context(), brokertest.Postgres(t))
	ok(t, err)
	t.Cleanup(func() { _ = db.Close(t.Context()) })
	_, err = db.Exec(t.Context(), `CREATE SCHEMA nsb; SET TIME ZONE 'Asia/Tokyo'`)
	ok(t, err)
	return db
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAMessageIsSentAndHandledOnce(t *testing.T) {
	db, q := connect(t), nservicebus.Address("nsb", `Net."Peer`)
	ok(t, nservicebus.CreateQueue(t.Context(), db, q))
	ok(t, nservicebus.AddBodyString(t.Context(), db, q))
	sent := nservicebus.Message{Headers: map[string]string{"NServiceBus.MessageId": "1"}, Body: []byte("hello")}
	ok(t, nservicebus.Send(t.Context(), db, q, sent))
	failure := errors.New("failure")
	for _, want := range []error{failure, nil} {
		found, err := nservicebus.Handle(t.Context(), db, q, func(_ pgx.Tx, m *nservicebus.Message) error {
			if string(m.Body) != "hello" || m.Headers["NServiceBus.MessageId"] != "1" || len(m.ID) != 36 {
				t.Errorf("received %+v", m)
			}
			return want
		})
		if !found || !errors.Is(err, want) {
			t.Errorf("found %t, error %v, want %v", found, err, want)
		}
	}
	if found, err := nservicebus.Handle(t.Context(), db, q, nil); found || err != nil {
		t.Errorf("found %t, error %v", found, err)
	}
	sent.TTL = time.Millisecond
	ok(t, nservicebus.Send(t.Context(), db, q, sent))
	_, err := db.Exec(t.Context(), `SELECT pg_sleep(0.01)`)
	ok(t, err)
	if found, err := nservicebus.Handle(t.Context(), db, q, nil); found || err != nil {
		t.Errorf("an expired message: found %t, error %v", found, err)
	}
}

func TestADelayedMessageIsForwardedByItsSender(t *testing.T) {
	db := connect(t)
	sender, to, delayed := nservicebus.Address("nsb", "Sender"), nservicebus.Address("nsb", "To"), nservicebus.DelayedAddress("nsb", "Sender")
	ok(t, nservicebus.CreateQueue(t.Context(), db, sender))
	ok(t, nservicebus.CreateQueue(t.Context(), db, to))
	ok(t, nservicebus.CreateDelayed(t.Context(), db, delayed))
	m := nservicebus.Message{Headers: map[string]string{"NServiceBus.MessageId": "1"}}
	ok(t, nservicebus.Delay(t.Context(), db, delayed, to, m, time.Hour))
	ok(t, nservicebus.Delay(t.Context(), db, delayed, to, m, -time.Second))
	n, err := nservicebus.MoveDue(t.Context(), db, delayed, sender, 100)
	if n != 1 || err != nil {
		t.Errorf("%d moved, error %v", n, err)
	}
	found, err := nservicebus.Handle(t.Context(), db, sender, nil)
	if !found || err != nil {
		t.Errorf("found %t, error %v", found, err)
	}
	got, err := nservicebus.Receive(t.Context(), db, to)
	if err != nil || got == nil || len(got.Headers) != 1 {
		t.Errorf("received %+v, error %v", got, err)
	}
}

func TestATextIDAndANullBodyCannotBeRead(t *testing.T) {
	db, q := connect(t), nservicebus.Address("nsb", "q")
	ok(t, nservicebus.CreateQueue(t.Context(), db, q))
	_, err := db.Exec(t.Context(), `INSERT INTO nsb.q (id, headers) VALUES (gen_random_uuid(), '{}')`)
	ok(t, err)
	if _, err := nservicebus.Receive(t.Context(), db, q); err == nil {
		t.Error("a null body was read")
	}
	_, err = db.Exec(t.Context(), `INSERT INTO nsb.q (id, headers, body) VALUES (gen_random_uuid(), '{}', ''); ALTER TABLE nsb.q ALTER id TYPE text`)
	ok(t, err)
	if _, err := nservicebus.Receive(t.Context(), db, q); err == nil {
		t.Error("a text id was read")
	}
}
