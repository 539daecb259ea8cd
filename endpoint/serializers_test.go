package endpoint_test

import (
	"context"
	"encoding/xml"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/serialization/nsbxml"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// xmlSerializer says what it is called.
type xmlSerializer struct{ name string }

func (s xmlSerializer) ContentType() string              { return s.name }
func (xmlSerializer) Marshal(v any) ([]byte, error)      { return xml.Marshal(v) }
func (xmlSerializer) Unmarshal(body []byte, v any) error { return xml.Unmarshal(body, v) }

// The first serializer writes, and each serializer reads its content type.
func TestTheFirstSerializerWritesAndEachReads(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c harness.Tally
		cfg := harness.Sales(broker,
			heard(&c, func(m harness.PlaceOrder) string { return m.ID }))
		cfg.Serializers = []serialization.Serializer{xmlSerializer{"text/xml"}, serialization.JSON}
		r := harness.Start(t, cfg)
		r.MustSend(harness.ShipOrder{ID: "7"})
		sent := broker.Messages("shipping")[0]
		if got := sent.Headers.Get(header.ContentType); got != "text/xml" || string(sent.Body) != "<ShipOrder><ID>7</ID></ShipOrder>" {
			t.Errorf("sent %q %s", got, sent.Body)
		}
		for _, m := range []struct{ contentType, body string }{
			{"application/json", `{"ID":"json"}`},
			{"application/json; charset=utf-8", `{"ID":"json in utf-8"}`},
			{"text/xml", `<placeOrder><ID>xml</ID></placeOrder>`},
			{"", `<placeOrder><ID>unnamed</ID></placeOrder>`},
		} {
			if err := broker.Put("sales", native("Shop.PlaceOrder", m.contentType, m.body)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if diff := cmp.Diff([]string{"json", "json in utf-8", "xml", "unnamed"}, c.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestANamedSerializerGetsTheTypesOfTheMessage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil }))
		cfg.Serializers = []serialization.Serializer{nsbxml.XML}
		r := harness.Start(t, cfg)
		r.MustSend(harness.ShipOrder{ID: "7"})
		body := string(broker.Messages("shipping")[0].Body)
		if !strings.HasPrefix(body, `<?xml version="1.0"?><ShipOrder `) || !strings.Contains(body, ` xmlns="http://tempuri.net/Shop"><ID>7</ID>`) {
			t.Errorf("sent %s", body)
		}
	})
}

// A content type that no serializer reads is unrecoverable, and the error names the content
// types that are read.
func TestAnUnreadContentTypeIsUnrecoverable(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil }))
		cfg.Serializers = []serialization.Serializer{serialization.JSON, xmlSerializer{"text/xml"}}
		harness.Start(t, cfg)
		if err := broker.Put("sales", native("Shop.PlaceOrder", "application/x-yaml", "ID: 7")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := broker.Messages("error")
		want := `content type "application/x-yaml": this endpoint reads ["application/json" "text/xml"]`
		if len(got) != 1 || got[0].Headers.Get(header.ExceptionMessage) != want {
			t.Errorf("%d in the error queue", len(got))
		}
	})
}

func TestMistakesInSerializersAreReportedTogether(t *testing.T) {
	cfg := harness.Sales(&inmemory.Transport{})
	cfg.Serializers = []serialization.Serializer{nil, xmlSerializer{"text/xml"}, xmlSerializer{"text/xml"}, xmlSerializer{}}
	_, err := endpoint.New(cfg)
	for _, want := range []string{
		"Serializers[0] is nil", `two of content type "text/xml"`, "Serializers[3], of type endpoint_test.xmlSerializer, has no content type",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

type (
	price  struct{ amount int }
	priced struct {
		Lines map[string][]price
		At    time.Time
	}
)

// New refuses messages that JSON stores in part, if JSON is the serializer that writes.
func TestNewRefusesMessagesThatJSONLoses(t *testing.T) {
	_ = price{}.amount
	cfg := harness.Sales(&inmemory.Transport{})
	cfg.Messages = append(cfg.Messages, endpoint.Event[priced]("Shop.Priced"))
	_, err := endpoint.New(cfg)
	want := "message endpoint_test.priced is not sent completely: JSON loses endpoint_test.priced.Lines[][].amount: the field is not exported"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("New: %v\nwant %q", err, want)
	}
	cfg.Serializers = []serialization.Serializer{xmlSerializer{"text/xml"}, serialization.JSON}
	if _, err := endpoint.New(cfg); err != nil {
		t.Errorf("a message that another serializer writes is refused: %v", err)
	}
}
