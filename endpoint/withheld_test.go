package endpoint_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A message whose property is outside the body is unrecoverable, and the error names the
// property.
func TestAWithheldPropertyIsUnrecoverable(t *testing.T) {
	const (
		keyID   = header.EncryptionKeyID
		storage = "2026-11-23_17\\0199a2f0"
		iv      = "AAECAwQFBgcICQoLDA0ODw=="
	)
	for name, test := range map[string]struct {
		header, body string
		want         []string
	}{
		"a convention": {"NServiceBus.DataBus.Shop.PlaceOrder.Scan", `{"ID":"1","Scan":null}`, []string{`property "Shop.PlaceOrder.Scan":`, "claim check"}},
		"a property": {
			"NServiceBus.DataBus." + storage, `{"ID":"1","Other":{"Key":"x"},"Scan":{"Key":"2026-11-23_17\\0199a2f0","HasValue":true}}`,
			[]string{`property "Scan":`},
		},
		"a property, of Newtonsoft": {
			"NServiceBus.DataBus." + storage, "\xef\xbb\xbf" + `{"Scan":{"$type":"A` + "`" + `1[[B, C]]","HasValue":true,"Key":"2026-11-23_17\\0199a2f0"}}`,
			[]string{`property "Scan":`},
		},
		"a property, of XML": {
			"NServiceBus.DataBus." + storage, `<PlaceOrder xmlns="x"><ID>1</ID><Scan><Key>` + storage + `</Key><HasValue>true</HasValue></Scan></PlaceOrder>`,
			[]string{`property "Scan":`},
		},
		"a key that is not in the body": {"NServiceBus.DataBus.7f(", `{}`, []string{`property "7f(":`}},
		"no key":                        {"NServiceBus.DataBus.", `{}`, []string{`property "":`}},
		"a very long key":               {"NServiceBus.DataBus." + strings.Repeat("k", 1<<20), `{}`, []string{`property "kkk`}},
		"an encrypted object": {
			keyID, `{"ID":"1","Card":{"Number":{"Value":null,"EncryptedValue":{"EncryptedBase64Value":"a/b=","Base64Iv":"` + iv + `"}}}}`,
			[]string{`property "Number":`, "encrypted"},
		},
		"encrypted texts": {
			keyID, `{"Mail":"a@b.example","Number":"Zm9v\u002BmJhcg==@` + iv + `","Code":"Zm9v@` + iv + `"}`, []string{`property "Number", "Code":`},
		},
		"encrypted, of XML": {
			keyID, `<PlaceOrder><Number><EncryptedValue><Base64Iv>` + iv + `</Base64Iv></EncryptedValue></Number><Code>Zm9v@` + iv + `</Code></PlaceOrder>`,
			[]string{`property "Number", "Code":`},
		},
		"encrypted, in an unknown form": {keyID, strings.Repeat(`{"a":`, 1<<20), []string{"property (unknown):"}},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				harness.Start(t, harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
					t.Error("it was handled")
					return nil
				})))
				m := native("Shop.PlaceOrder", "application/json", test.body)
				m.Headers.Set(test.header, "20151014")
				if err := broker.Put("sales", m); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				failed := broker.Messages("error")
				if len(failed) != 1 || failed[0].Headers.Get(header.HoldfastAttempts) != "1" || failed[0].Headers.Get(header.HoldfastFaultClass) != "undecodable" {
					t.Fatalf("the error queue has %v", failed)
				}
				told := failed[0].Headers.Get(header.ExceptionMessage)
				for _, want := range test.want {
					if !strings.Contains(told, want) || len(told) > 2000 {
						t.Errorf("the error says %.500q, want %q", told, want)
					}
				}
			})
		})
	}
}

// A behavior may have fetched or decrypted the value.
func TestAReturnedClaimRemovesItsHeader(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var got harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			got.Add(o.ID)
			return nil
		}))
		cfg.AuditQueue = "audit"
		cfg.Pipeline.Receive.Use("fetch", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, r *pipeline.Receive) error {
				r.Headers.Del("NServiceBus.DataBus.Shop.PlaceOrder.ID")
				r.Body = []byte(`{"ID":"fetched"}`)
				return next(ctx, r)
			}
		})
		harness.Start(t, cfg)
		m := native("Shop.PlaceOrder", "application/json", `{}`)
		m.Headers.Set("NServiceBus.DataBus.Shop.PlaceOrder.ID", "key")
		m.Headers.Set("NServiceBus.DataBusConfig.ContentType", "application/json") // that alone claims nothing
		if err := broker.Put("sales", m); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if all := got.List(); len(all) != 1 || all[0] != "fetched" {
			t.Errorf("handled %q", all)
		}
		if audited := broker.Messages("audit"); len(audited) != 1 || audited[0].Headers.Get("NServiceBus.DataBus.Shop.PlaceOrder.ID") != "key" {
			t.Errorf("audited %v", audited)
		}
	})
}
