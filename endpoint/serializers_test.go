package endpoint_test

import (
	"context"
	"encoding/xml"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/serialization/nsbxml"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// xmlSerializer says what it is called.
type xmlSerializer struct{ name string }

func (s xmlSerializer) ContentType() string              { return s.name }
func (xmlSerializer) Marshal(v any) ([]byte, error)      { return xml.Marshal(v) }
func (xmlSerializer) Unmarshal(body []byte, v any) error { return xml.Unmarshal(body, v) }

func TestTheFirstSerializerWritesAndEachReadsItsContentType(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c tally
		cfg := sales(broker,
			heard(&c, func(m placeOrder) string { return m.ID }))
		cfg.Serializers = []serialization.Serializer{xmlSerializer{"text/xml"}, serialization.JSON}
		r := start(t, cfg)
		r.send(shipOrder{ID: "7"})
		sent := broker.Messages("shipping")[0]
		if got := sent.Headers.Get(header.ContentType); got != "text/xml" || string(sent.Body) != "<shipOrder><ID>7</ID></shipOrder>" {
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
		if diff := cmp.Diff([]string{"json", "json in utf-8", "xml", "unnamed"}, c.list()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestANamedSerializerGetsTheTypesOfTheMessage(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error { return nil }))
		cfg.Serializers = []serialization.Serializer{nsbxml.XML}
		r := start(t, cfg)
		r.send(shipOrder{ID: "7"})
		body := string(broker.Messages("shipping")[0].Body)
		if !strings.HasPrefix(body, `<?xml version="1.0"?><ShipOrder `) || !strings.Contains(body, ` xmlns="http://tempuri.net/Shop"><ID>7</ID>`) {
			t.Errorf("sent %s", body)
		}
	})
}

func TestAContentTypeThatNobodyReadsFailsForGoodAndSaysWhatIsRead(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error { return nil }))
		cfg.Serializers = []serialization.Serializer{serialization.JSON, xmlSerializer{"text/xml"}}
		start(t, cfg)
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
	cfg := sales(&inmemory.Transport{})
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
