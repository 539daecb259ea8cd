package rabbitmq_test

import (
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// Variables of the process that TestInstallThatIsKilledIsRepeated kills.
const (
	installURL = "HOLDFAST_TEST_INSTALL_URL"
	installAPI = "HOLDFAST_TEST_INSTALL_API"
)

func TestInstallThatIsKilledIsRepeated(t *testing.T) {
	t.Parallel()
	plan := transport.Plan{Queues: []transport.Queue{{Name: "test"}, {Name: "test.quarantine", Counted: true}, {Name: "error", Shared: true}}}
	if url := os.Getenv(installURL); url != "" {
		c := open(t, url, func(tr *rabbitmq.Transport) { tr.Management, tr.DeliveryLimit = os.Getenv(installAPI), rabbitmq.None })
		must(t, c.(transport.Installer).Install(patiently(t), plan))
		return
	}
	l := newLimiting(t, "killed")
	for _, forwarded := range []bool{false, true} { // the request has reached the broker
		c, logs := openLogged(t, l.bare())
		reached, proceed := make(chan struct{}, 3), make(chan struct{})
		hold := func() {
			reached <- struct{}{}
			<-proceed
		}
		if forwarded {
			l.after.Store(&hold)
		} else {
			l.atPut.Store(&hold)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestInstallThatIsKilledIsRepeated$", "-test.timeout=3m")
		cmd.Env = append(os.Environ(), installURL+"="+l.amqp, installAPI+"="+l.api)
		must(t, cmd.Start())
		select {
		case <-reached:
		case <-patiently(t).Done():
			t.Fatal("no policy was created")
		}
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // says that it was killed
		l.after.Store(nil)
		l.atPut.Store(nil)
		close(proceed)

		must(t, c.(transport.Installer).Install(patiently(t), plan))
		if found := limitedOf(verify(t, c, plan)); len(found) > 0 || logs.String() != "" {
			t.Errorf("forwarded: %t: %v, %s", forwarded, found, logs)
		}
		if n := len(l.policies(t)); n != 3 {
			t.Errorf("forwarded: %t: %d policies, want 3", forwarded, n)
		}
		must(t, c.(transport.Remover).Remove(within(t), "test", "test.quarantine", "error"))
	}
}

// Install creates the queues whatever the API answers, soon, and says what to do without the API's
// user and password.
func TestInstallOutlastsTheManagementAPI(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	if strings.HasPrefix(versionOf(t, url), "3.") {
		url = throughClaims4(t, url)
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: "test"}, {Name: "test-1"}, {Name: "test-2"}, {Name: "error", Shared: true}}}
	for name, test := range map[string]struct {
		handle func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"no plugin":      {nil, "connection refused"},
		"wrong password": {status(http.StatusUnauthorized), "monitoring"},
		"another server": {status(http.StatusNotFound), "no such queue"},
		"broken":         {status(http.StatusInternalServerError), "500"},
		"no JSON":        {answer("<html>"), "invalid character"},
		"a list":         {answer("[]"), "cannot unmarshal"},
		"endless":        {answer(`{"name":"` + strings.Repeat("x", 9<<20)), "unexpected EOF"},
		"slow":           {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "Timeout exceeded"},
		"refused": {func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasPrefix(r.URL.Path, "/api/policies/") && r.Method == http.MethodGet:
				answer(`[{"pattern":"(?<!no)test","apply-to":"all"},{"pattern":"^test","apply-to":"exchanges"},{"pattern":"x","apply-to":"all"}]`)(w, r)
				return
			case r.Method == http.MethodGet:
				answer(`{"type":"quorum","arguments":{},"effective_policy_definition":{},"delivery_limit":20}`)(w, r)
				return
			}
			w.WriteHeader(http.StatusBadRequest)
			answer(`{"error":"bad_request","reason":"Validation failed\n\nno"}`)(w, r)
		}, `400 Bad Request "Validation failed\n\nno"`},
	} {
		t.Run(name, func(t *testing.T) {
			api := "http://127.0.0.1:1"
			if test.handle != nil {
				server := httptest.NewServer(http.HandlerFunc(test.handle))
				defer server.Close()
				api = server.URL
			}
			c, logs := openLogged(t, &rabbitmq.Transport{
				URL: url, DeliveryLimit: rabbitmq.None, Management: strings.Replace(api, "://", "://admin:s3cret@", 1),
			})
			start := time.Now()
			must(t, c.(transport.Installer).Install(within(t), plan))
			w := warnings(t, logs)["error"]
			if len(warnings(t, logs)) != len(plan.Queues) || !strings.Contains(w.Reason, test.want) || !strings.Contains(w.Command, "set_policy") {
				t.Errorf("the log says %s", logs)
			}
			if strings.Contains(logs.String(), "s3cret") || strings.Contains(logs.String(), "admin") {
				t.Errorf("the log tells the user or the password: %s", logs)
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("it took %v", took)
			}
			if _, err := c.(transport.Inspector).Inspect(within(t), "test"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A request that is answered too late is sent once more.
func TestInstallRepeatsALateRequestOfTheManagementAPI(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	if strings.HasPrefix(versionOf(t, url), "3.") {
		url = throughClaims4(t, url)
	}
	var late atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if late.CompareAndSwap(false, true) {
			<-r.Context().Done()
			return
		}
		answer(`{"type":"quorum","arguments":{},"effective_policy_definition":{"delivery-limit":100000},"delivery_limit":100000}`)(w, r)
	}))
	defer server.Close()
	c, logs := openLogged(t, &rabbitmq.Transport{URL: url, DeliveryLimit: rabbitmq.None, Management: server.URL})
	must(t, c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: "test"}}}))
	if logs.String() != "" || !late.Load() {
		t.Errorf("the log says %s", logs)
	}
}

func status(code int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func answer(body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
}

// The authorities of the broker's URL are those of the API too.
func TestTheManagementAPIIsReachedOverTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(answer(`{"type":"classic","effective_policy_definition":[]}`)))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	url := brokertest.RabbitMQ(t)
	pool := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	for name, tr := range map[string]*rabbitmq.Transport{
		"files of the URL": {URL: url + "?cacertfile=" + ca},
		"TLS":              {URL: url, TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
		"none":             {URL: url},
	} {
		tr.Management = server.URL
		c, _ := openLogged(t, tr)
		plan := transport.Plan{Queues: []transport.Queue{{Name: "test"}}}
		_, err := c.(transport.Verifier).Verify(within(t), plan)
		if isUnknown := err != nil && strings.Contains(err.Error(), "certificate"); isUnknown != (name == "none") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
