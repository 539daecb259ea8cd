package rabbitmq_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// limiting is a virtual host of a broker that limits deliveries by default, as from RabbitMQ 4.0,
// with its management API. A test on an older broker gets that one with a version number, a report
// on the limit, and the name of a target of policies in the form of 4.0.
type limiting struct {
	brokertest.RabbitMQNode
	vhost string
	real  string // the URL of the broker itself
	amqp  string
	api   string
	puts  atomic.Int32
	atPut atomic.Pointer[func()] // called before a policy is forwarded; nil for nothing
	after atomic.Pointer[func()] // called before the answer is
}

func newLimiting(t *testing.T, vhost string) *limiting {
	t.Helper()
	node := rabbitmq.OwnNode(t)
	node.AddVhost(vhost)
	u, err := url.Parse(node.URL)
	must(t, err)
	u.Path, u.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
	l := &limiting{RabbitMQNode: node, vhost: vhost, real: u.String(), amqp: u.String()}
	older := strings.HasPrefix(versionOf(t, l.real), "3.")
	if older {
		u.Host = claims4(t, u.Host)
		l.amqp = u.String()
	}
	target, err := url.Parse(rabbitmq.ManagementAPI())
	must(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding") // report4 reads the answer
		},
		ModifyResponse: func(r *http.Response) error {
			if older {
				return report4(r)
			}
			return nil
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isPut := r.Method == http.MethodPut
		if isPut {
			l.puts.Add(1)
			call(l.atPut.Load())
			if older {
				rewrite(t, r)
			}
		}
		proxy.ServeHTTP(w, r)
		if isPut {
			call(l.after.Load())
		}
	}))
	t.Cleanup(server.Close)
	l.api = server.URL
	return l
}

func call(f *func()) {
	if f != nil {
		(*f)()
	}
}

// bare is the transport of an endpoint whose queues NServiceBus may take over.
func (l *limiting) bare() *rabbitmq.Transport {
	return &rabbitmq.Transport{URL: l.amqp, Management: l.api, DeliveryLimit: rabbitmq.None}
}

// declare creates a quorum queue as others do.
func (l *limiting) declare(t *testing.T, name string, args amqp.Table) {
	t.Helper()
	all := amqp.Table{"x-queue-type": "quorum"}
	for k, v := range args {
		all[k] = v
	}
	if _, err := rawChannel(t, l.real).QueueDeclare(name, true, false, false, false, all); err != nil {
		t.Fatal(err)
	}
}

// policy is one as the API shows it.
type policy struct {
	Name, Pattern string
	Definition    map[string]any
	Priority      int
	ApplyTo       string `json:"apply-to"`
}

// policies returns the policies of the virtual host by name.
func (l *limiting) policies(t *testing.T) map[string]policy {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), http.MethodGet, l.api+"/api/policies/"+url.PathEscape(l.vhost), nil)
	must(t, err)
	r.SetBasicAuth("guest", "guest")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var all []policy
	if err := json.NewDecoder(answer.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]policy)
	for _, p := range all {
		byName[p.Name] = p
	}
	return byName
}

// limitedOf are the findings that a queue is limited, by queue.
func limitedOf(findings []transport.Finding) map[string]string {
	details := make(map[string]string)
	for _, f := range findings {
		if f.State == transport.Limited {
			details[f.Name] += f.Detail
		}
	}
	return details
}

// claims4 returns the address of a proxy that writes 4 for the 3 of the broker's version.
func claims4(t *testing.T, broker string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go serve4(client, broker)
		}
	}()
	return l.Addr().String()
}

// throughClaims4 returns the URL with such a proxy in place of its host.
func throughClaims4(t *testing.T, broker string) string {
	t.Helper()
	u, err := url.Parse(broker)
	must(t, err)
	u.Host = claims4(t, u.Host)
	return u.String()
}

func serve4(client net.Conn, broker string) {
	defer client.Close()
	server, err := net.Dial("tcp", broker)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	start := make([]byte, 4096) // the server's properties arrive at once
	n, _ := server.Read(start)
	text := bytes.Replace(start[:n], []byte("\x07versionS\x00\x00\x00\x063."), []byte("\x07versionS\x00\x00\x00\x064."), 1)
	if _, err := client.Write(text); err == nil {
		_, _ = io.Copy(client, server)
	}
}

// rewrite names the target of a policy as RabbitMQ 3.10 does.
func rewrite(t *testing.T, r *http.Request) {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	must(t, err)
	body = bytes.Replace(body, []byte(`"quorum_queues"`), []byte(`"queues"`), 1)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
}

// report4 adds the delivery limit to the report on a queue.
func report4(r *http.Response) error {
	if r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Request.URL.Path, "/api/queues/") {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	var queue map[string]any
	if json.Unmarshal(body, &queue) == nil && queue["effective_policy_definition"] != nil {
		queue["delivery_limit"] = 20
		args, _ := queue["arguments"].(map[string]any)
		policies, _ := queue["effective_policy_definition"].(map[string]any)
		for _, limit := range []any{args["x-delivery-limit"], policies["delivery-limit"]} {
			if limit != nil {
				queue["delivery_limit"] = limit
			}
		}
		if body, err = json.Marshal(queue); err != nil {
			return err
		}
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}
