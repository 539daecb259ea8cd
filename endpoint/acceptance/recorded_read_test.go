package acceptance_test

import (
	"context"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// got is a message as a handler has it.
type got struct {
	id      string
	headers map[string]string
	value   any
}

// key is unique in a file of recordings.
func key(id string, headers map[string]string) string {
	return id + " " + headers[header.ConversationID]
}

func keep[M any](heard chan<- got) endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, s *endpoint.Session, m M) error {
		heard <- got{s.MessageID(), maps.Collect(s.Headers().All()), m}
		return nil
	})
}

// Each recorded message is handled with its headers, its types and its body, whatever the
// serializer and the envelope.
func TestRecordedMessages(t *testing.T) {
	onBrokers(t, []string{"rabbitmq", "rabbitmq-xml", "postgresql", "sqs"}, []string{"rabbitmq-newtonsoft"}, func(t *testing.T, name string) {
		on := landscapes[name](t)
		heard := make(chan got, 100)
		cfg := on.config(
			keep[netPing](heard), keep[netPong](heard), keep[netHappened](heard), keep[netBase](heard),
			keep[netPoison](heard), keep[netFlaky](heard), keep[netPerishable](heard), keep[netAsk](heard),
			keep[netLater](heard), keep[netEverything](heard),
		)
		run := start(t, cfg)
		want := map[string]*recorded{}
		both := 0
		for _, m := range recordings(t, on.file) {
			if m.Queue == on.own {
				on.put(t, &m, on.own)
				want[key(m.ID, m.Headers)] = &m
			}
			if m.What == "event with a base" {
				both++ // a handler of the event and one of its base
			}
		}
		count := map[string]int{}
		for range len(want) + both {
			select {
			case m := <-heard:
				count[key(m.id, m.headers)]++
				on.compare(t, want[key(m.id, m.headers)], m)
			case <-time.After(timeLimit):
				t.Fatalf("%d of %d messages were handled: %v", len(count), len(want), count)
			}
		}
		run.end()
		for id, m := range want {
			if count[id] == 0 {
				t.Errorf("%s (%s) was not handled", m.What, id)
			}
		}
		on.readOthers(t)
	})
}

// config returns the configuration of the Go endpoint.
func (on *landscape) config(handlers ...endpoint.Handler) endpoint.Config {
	cfg := sales(on.Transport, handlers...)
	cfg.Name, cfg.Messages, cfg.Routes = on.own, netMessages(), nil
	cfg.Serializers = bothFormats(on.xml)
	cfg.Recoverability = recoverability.Config{
		ErrorQueue: "error", Immediate: recoverability.None, Delayed: recoverability.None,
	}
	cfg.AuditQueue = "audit"
	return cfg
}

func (on *landscape) compare(t *testing.T, want *recorded, m got) {
	t.Helper()
	if want == nil {
		t.Errorf("a message %q that was not put", m.id)
		return
	}
	if diff := cmp.Diff(want.Headers, m.headers); diff != "" {
		t.Errorf("%s: headers (-recorded +read):\n%s", want.What, diff)
	}
	value := want.value(t)
	if base, ok := m.value.(netBase); ok {
		if base != netBase(value.(interface{ text() netBase }).text()) {
			t.Errorf("%s: read by its base as %+v", want.What, base)
		}
		return
	}
	if !reflect.DeepEqual(normal(value), normal(m.value)) {
		t.Errorf("%s: read as %+v, want %+v", want.What, m.value, value)
	}
}

func (m netHappened) text() netBase { return netBase(m) }

func (m netBase) text() netBase { return m }

// normal returns a message with times that can be compared.
func normal(m any) any {
	switch m := m.(type) {
	case netPing:
		m.When = m.When.UTC()
		return m
	case netLater:
		m.Sent = m.Sent.UTC()
		return m
	case netEverything:
		m.Utc, m.Off = m.Utc.UTC(), m.Off.UTC()
		return m
	}
	return m
}

// readOthers puts the recorded messages of the error queue and the audit queue there, and reads
// them as a driver does.
func (on *landscape) readOthers(t *testing.T) {
	t.Helper()
	conn, err := on.Open(t.Context(), transport.Env{Endpoint: on.own})
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	must(t, conn.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "failed"}}}))
	r, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "failed"})
	must(t, err)
	r.Window(1)
	for _, m := range recordings(t, on.file) {
		if m.Queue != "error" && m.Queue != "audit" {
			continue
		}
		on.put(t, &m, "failed")
		ds, err := r.Receive(t.Context(), 1)
		must(t, err)
		got := ds[0].Message()
		if diff := cmp.Diff(m.Headers, maps.Collect(got.Headers.All())); diff != "" {
			t.Errorf("%s: headers (-recorded +read):\n%s", m.What, diff)
		}
		if got.ID != m.Headers[header.MessageID] || string(got.Body) != m.Body || got.Undecodable != nil {
			t.Errorf("%s: message %q, body %q, %v", m.What, got.ID, got.Body, got.Undecodable)
		}
		must(t, ds[0].Complete(t.Context()))
	}
	must(t, r.Close())
}
