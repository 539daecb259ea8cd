package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// Failed messages of one queue have its address in different forms: of versions before addresses,
// of NServiceBus, and without a schema.
func TestAllFormsOfAnAddressAreOneQueue(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		use   func(t *testing.T) (prefix string)
		forms func(prefix string) []string
		name  string
		bad   string
	}{
		"PostgreSQL": {
			func(t *testing.T) string { setenv(t, transportVar, brokertest.Postgres(t)); return "" },
			func(string) []string { return []string{"Go.Peer", `"Go.Peer"`, `"public"."Go.Peer"`} }, "Go.Peer", `"public".Go.Peer`,
		},
		"Amazon SQS": {
			func(t *testing.T) string { onSQS(t); _, prefix := awsQueues(t); return prefix },
			func(prefix string) []string { return []string{"Go.Peer", "Go-Peer", prefix + "Go-Peer"} }, "Go-Peer", "Größe",
		},
		"Service Bus": {
			func(t *testing.T) string {
				setenv(t, transportVar, brokertest.ServiceBus(t).URL()+"&hierarchy=Go")
				return "Go/"
			},
			func(prefix string) []string { return []string{"Go.Peer", prefix + "Go.Peer"} }, "Go.Peer", "Go.Peer/",
		},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := test.use(t)
			forms := test.forms(prefix)
			must(t, "", "queues", "create", "Go.Peer")
			var ids []string
			for i, form := range forms {
				ids = append(ids, string(rune('a'+i)))
				fail(t, ids[i], "Shop.PlaceOrder", form, "timeout", "no answer")
			}
			fail(t, "bad", "Shop.PlaceOrder", test.bad, "timeout", "no answer")
			last := forms[len(forms)-1]
			var listed []string
			for _, e := range listedEntries(t, "--failed-queue", last) {
				if listed = append(listed, e.ID); e.Queue != test.name {
					t.Errorf("%s failed in %q, want %q", e.ID, e.Queue, test.name)
				}
			}
			if diff := cmp.Diff(ids, listed); diff != "" {
				t.Errorf("of %s (-want +got):\n%s", last, diff)
			}
			code, _, errText := call(t, "", "errors", "retry", "--all")
			if code != 1 || !strings.Contains(errText, "not retried: bad: ") || !strings.Contains(errText, test.bad[len(test.bad)-4:]) {
				t.Errorf("retry: exit code %d, %s", code, errText)
			}
			if out := must(t, "", "queues", last); !strings.Contains(out, "\n"+test.name+" ") {
				t.Errorf("shown:\n%s", out)
			}
			must(t, "", "errors", "retry", "bad", "--to", last)
			holds(t, last, append(ids, "bad")...)
		})
	}
}

func listedEntries(t *testing.T, filter ...string) (all []errorqueue.Entry) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(must(t, "", append([]string{"errors", "list", "--json"}, filter...)...))); d.More(); {
		var e errorqueue.Entry
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}
