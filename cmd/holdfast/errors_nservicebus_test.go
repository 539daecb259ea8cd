package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
)

// The failures are listed, shown, retried, discarded and exported.
func TestFailuresInATableOfNServiceBus(t *testing.T) {
	t.Parallel()
	url := brokertest.Postgres(t)
	setenv(t, transportVar, url)
	db, err := pgx.Connect(t.Context(), url)
	done(t, err)
	defer db.Close(t.Context())
	peer, errs := nservicebus.Address("public", "Net.Peer"), nservicebus.Address("public", "error")
	for _, q := range []string{peer, errs} {
		done(t, nservicebus.CreateQueue(t.Context(), db, q))
	}
	for _, id := range []string{"one", "two", "three", "three"} {
		m := &nservicebus.Message{Headers: map[string]string{
			"NServiceBus.MessageId": id, "NServiceBus.EnclosedMessageTypes": "Shop.Order, net",
		}, Body: []byte(`{"n":1}`)}
		done(t, nservicebus.Send(t.Context(), db, errs, nservicebus.FailedCopy(m, peer, "Net.Peer", "no "+id)))
	}

	if out := must(t, "", "errors", "list"); strings.Count(out, "\n") != 6 || !strings.Contains(out, "no two") {
		t.Errorf("the list:\n%s", out)
	}
	if out := must(t, "", "errors", "show", "two"); !strings.Contains(out, "System.InvalidOperationException") {
		t.Errorf("shown:\n%s", out)
	}
	if out := must(t, "", "queues", "peek", "error", "--first", "2"); strings.Count(out, "\n") != 3 {
		t.Errorf("peeked:\n%s", out)
	}
	if out := must(t, "", "errors", "export", "--file", "-"); strings.Count(out, "\n") != 4 {
		t.Errorf("exported:\n%s", out)
	}
	must(t, "", "errors", "retry", "one", "three")
	must(t, "", "errors", "discard", "two")
	if out := must(t, "", "errors", "list", "--json"); out != "" {
		t.Errorf("left are:\n%s", out)
	}
	var ids []string
	for {
		found, err := nservicebus.Handle(t.Context(), db, peer, func(_ pgx.Tx, m *nservicebus.Message) error {
			ids = append(ids, m.Headers["NServiceBus.MessageId"])
			if m.Headers["NServiceBus.FailedQ"] != "" || string(m.Body) != `{"n":1}` {
				t.Errorf("returned %+v", m)
			}
			return nil
		})
		done(t, err)
		if !found {
			break
		}
	}
	if got, _ := json.Marshal(ids); string(got) != `["one","three","three"]` {
		t.Errorf("NServiceBus received %s", got)
	}
}

func done(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
