package rabbitmq_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestVerifyNamesPoliciesThatDropOrRefuseMessages(t *testing.T) {
	t.Parallel()
	node := rabbitmq.OwnNode(t)
	c := open(t, node.URL, func(tr *rabbitmq.Transport) { tr.Management = rabbitmq.ManagementAPI() })
	must(t, c.(transport.Installer).Install(within(t), wholePlan))
	u, err := url.Parse(node.URL)
	must(t, err)
	vhost := strings.TrimPrefix(u.Path, "/")
	if found := verify(t, c, wholePlan); len(found) != 0 {
		t.Errorf("without policies: %+v", found)
	}
	node.Control("set_policy", "-p", vhost, "all", ".*", `{"max-length":7,"delivery-limit":50}`, "--apply-to", "queues")
	node.Control("set_operator_policy", "-p", vhost, "old", `^holdfast\.delay-level-03$`, `{"message-ttl":60000}`, "--apply-to", "queues")
	// The plan's three, dead letters, levels, the delays' two others and two relays.
	const queues = 3 + 1 + 28 + 2 + 2
	var limited []transport.Finding
	isBoth := func(f transport.Finding) bool {
		return strings.Contains(f.Detail, `or "old" sets max-length 7, message-ttl 60000`)
	}
	for ctx := within(t); len(limited) != queues || !slices.ContainsFunc(limited, isBoth); { // the broker applies policies in the background
		if ctx.Err() != nil {
			t.Fatalf("policies limit %d queues, want %d: %+v", len(limited), queues, limited)
		}
		limited = verify(t, c, wholePlan)
	}
	for _, f := range limited {
		if f.State != transport.Limited || f.Kind != "queue" || !strings.Contains(f.Detail, `policy "all"`) || !strings.Contains(f.Detail, "max-length 7") {
			t.Errorf("%+v", f)
		}
		if isOld := f.Name == "holdfast.delay-level-03"; isOld != isBoth(f) {
			t.Errorf("%+v", f)
		}
	}
}

func TestVerifySaysThatPoliciesWereNotRead(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	found, err := c.(transport.Verifier).Verify(within(t), transport.Plan{})
	if err != nil || len(found) != 1 || found[0].State != transport.Unread || !strings.Contains(found[0].Detail, "Management") {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestTheManagementPasswordIsInNoError(t *testing.T) {
	t.Parallel()
	refuse := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != "s3cret" {
			t.Error("the request has another password")
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer refuse.Close()
	broker := brokertest.RabbitMQ(t)
	with := func(address string) string { return strings.Replace(address, "://", "://admin:s3cret@", 1) }
	for _, address := range []string{with(refuse.URL), with("http://127.0.0.1:1")} {
		c := open(t, broker, func(tr *rabbitmq.Transport) { tr.Management = address })
		must(t, c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: brokertest.Name(t, "orders")}}}))
		_, err := c.(transport.Verifier).Verify(within(t), wholePlan)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, invalid := range []string{"127.0.0.1:15672", "http://admin:s3cret/x@host:15672", "ftp://admin:s3cret@host", "http://admin:s3cret@host?x=1"} {
		_, err := (&rabbitmq.Transport{URL: broker, Management: invalid}).Open(within(t), transport.Env{})
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", invalid, err)
		}
	}
}

// The API counts messages that are neither ready nor delivered: those that a full queue refuses.
func TestDelaysThatAFullQueueRefusesAreCounted(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := `{"name":"new"}` // its numbers are not known yet
		switch r.URL.Path {
		case vhostPath(broker) + "holdfast.delay-to.queue.full":
			answer = `{"messages":5,"messages_ready":2}`
		case vhostPath(broker) + "holdfast.delay-level-07":
			answer = `{"messages":1,"messages_ready":1}`
		}
		if _, err := w.Write([]byte(answer)); err != nil {
			t.Error(err)
		}
	}))
	defer api.Close()
	c := open(t, broker, func(tr *rabbitmq.Transport) { tr.Management = api.URL })
	plan := transport.Plan{Queues: []transport.Queue{{Name: "full"}}, Delays: true}
	must(t, c.(transport.Installer).Install(within(t), plan))
	must(t, dispatch(c, delayed("full", "later", 200*time.Second)))
	stats, err := rabbitmq.InspectDelays(within(t), c, "full", "absent")
	want := []transport.QueueStats{
		{Name: "holdfast.delay-lost", Unsettled: -1, Delayed: -1},
		{Name: "holdfast.delay-level-07", Ready: 1, Delayed: -1},
		{Name: "holdfast.delay-to.queue.full", Unsettled: 3, Delayed: -1},
	}
	if err != nil || !slices.Equal(stats, want) {
		t.Errorf("%+v, %v, want %+v", stats, err, want)
	}
}

// vhostPath is where the API has the queues of a broker's virtual host.
func vhostPath(broker string) string {
	return "/api/queues" + broker[strings.LastIndex(broker, "/"):] + "/"
}
