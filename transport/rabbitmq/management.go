package rabbitmq

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/transport"
)

// management is the HTTP API of the broker's management plugin
// (https://www.rabbitmq.com/docs/http-api-reference). A nil one is not configured.
type management struct {
	base   string // without user and password
	login  func(context.Context) (Credentials, error)
	vhost  string
	client *http.Client
}

var errManagementURL = errors.New(`rabbitmq: Transport.Management is not valid: write http://user:password@host:15672, ` +
	`with special characters in user and password percent-encoded`)

// newManagement reads Transport.Management. Without a user in it, it uses that of the broker's
// connections. Errors do not quote the text, which holds a password.
func newManagement(t *Transport, d *dialer) (*management, error) {
	if t.Management == "" {
		return nil, nil //nolint:nilnil // see management
	}
	u, err := url.Parse(t.Management)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "http" && u.Scheme != "https" ||
		strings.Contains(u.Host+u.Path, "@") {
		return nil, errManagementURL
	}
	broker, err := parseURL(t.URL)
	if err != nil {
		return nil, err
	}
	m := &management{vhost: d.vhost(), login: d.ask}
	if user := cmp.Or(u.User, broker.User); user != nil {
		password, _ := user.Password()
		m.login = func(context.Context) (Credentials, error) { return Password(user.Username(), password), nil }
	}
	u.User = nil
	m.base = strings.TrimSuffix(u.String(), "/")
	config := t.TLS.Clone()
	if config == nil && u.Scheme == "https" {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
		if err := useFiles(config, &d.nodes[0].uri); err != nil {
			return nil, fmt.Errorf("rabbitmq: %w", err)
		}
	}
	m.client = &http.Client{
		Timeout:   dialTimeout,
		Transport: &http.Transport{TLSClientConfig: callback.TLS(config), Proxy: http.ProxyFromEnvironment},
	}
	return m, nil
}

// errAbsent means that the API has no such thing, or that the broker has no virtual host of that
// name.
var errAbsent = errors.New("it says 404 Not Found")

// managementBody is the most bytes of an answer that are read.
const managementBody = 8 << 20

// request is a request to the API.
type request struct {
	method string
	path   []string // after /api, not escaped
	body   any      // nil for none
	tag    string   // that the user needs
}

// do sends a request and decodes the answer, unless it is nil.
func (m *management) do(ctx context.Context, r request, answer any) error {
	response, err := m.send(ctx, r)
	var failed net.Error
	if errors.As(err, &failed) && failed.Timeout() && ctx.Err() == nil {
		// A broker under load answers late. All requests are idempotent.
		response, err = m.send(ctx, r)
	}
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	body := json.NewDecoder(io.LimitReader(response.Body, managementBody))
	switch code := response.StatusCode; {
	case code == http.StatusNotFound:
		return errAbsent
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fmt.Errorf("it says %s: give the user the tag %q and a right in virtual host %q", response.Status, r.tag, m.vhost)
	case code >= http.StatusMultipleChoices:
		var why struct{ Reason string }
		_ = body.Decode(&why) // the status says enough
		return fmt.Errorf("it says %s %.200q", response.Status, why.Reason)
	case answer == nil:
		return nil
	}
	return body.Decode(answer)
}

func (m *management) send(ctx context.Context, r request) (*http.Response, error) {
	req, err := m.newRequest(ctx, r)
	if err != nil {
		return nil, err
	}
	return m.client.Do(req)
}

func (m *management) newRequest(ctx context.Context, r request) (*http.Request, error) {
	var body io.Reader = http.NoBody
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	address := m.base + "/api"
	for _, name := range r.path {
		address += "/" + url.PathEscape(name)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	login, err := m.login(ctx)
	if err != nil {
		return nil, err
	}
	login.authorize(req)
	return req, nil
}

// hasPolicyFor reports whether a policy of the virtual host, other than except, is for quorum
// queues of that name. Patterns are Perl's: one that Go cannot read is passed over.
func (m *management) hasPolicyFor(ctx context.Context, queue, except string) (bool, error) {
	var all []policy
	err := m.do(ctx, request{method: http.MethodGet, path: []string{"policies", m.vhost}, tag: "monitoring"}, &all)
	return slices.ContainsFunc(all, func(p policy) bool {
		pattern, err := regexp.Compile(p.Pattern)
		return err == nil && pattern.MatchString(queue) && p.Name != except &&
			slices.Contains([]string{"all", "queues", "quorum_queues"}, p.ApplyTo)
	}), wrap(err, "list policies by the management API")
}

// setPolicy creates a policy of the virtual host.
func (m *management) setPolicy(ctx context.Context, name string, p policy) error {
	path := []string{"policies", m.vhost, name}
	err := m.do(ctx, request{method: http.MethodPut, path: path, body: p, tag: "policymaker"}, nil)
	return wrap(err, "create policy %q by the management API", name)
}

// deletePolicy deletes a policy of the virtual host, if it exists.
func (m *management) deletePolicy(ctx context.Context, name string) error {
	path := []string{"policies", m.vhost, name}
	err := m.do(ctx, request{method: http.MethodDelete, path: path, tag: "policymaker"}, nil)
	if errors.Is(err, errAbsent) {
		return nil
	}
	return wrap(err, "delete policy %q by the management API", name)
}

// managedQueue is a queue in the API. The broker reports all but its name, type and arguments every
// 5 s.
type managedQueue struct {
	Type           string          `json:"type"`
	Arguments      json.RawMessage `json:"arguments"`      // an object, or an empty list for none
	Messages       *int64          `json:"messages"`       // with unsettled and dead-lettered ones; null when not known yet
	Ready          *int64          `json:"messages_ready"` // null when not known yet
	Policy         string          `json:"policy"`
	OperatorPolicy string          `json:"operator_policy"`
	Effective      json.RawMessage `json:"effective_policy_definition"` // an object, or an empty list for none; absent when not known yet
	DeliveryLimit  any             `json:"delivery_limit"`              // from 4.0: a number, or "unlimited"
}

// settings returns the entries of an object; none where the API has an empty list instead.
func settings(object json.RawMessage) map[string]any {
	var all map[string]any
	if json.Unmarshal(object, &all) != nil {
		return nil
	}
	return all
}

// number returns a value that is a number.
func number(value any) (n int64, ok bool) {
	f, ok := value.(float64)
	return int64(f), ok
}

// queue returns a queue, or fails with [transport.ErrNoQueue].
func (m *management) queue(ctx context.Context, name string) (q managedQueue, err error) {
	err = m.do(ctx, request{method: http.MethodGet, path: []string{"queues", m.vhost, name}, tag: "monitoring"}, &q)
	if errors.Is(err, errAbsent) {
		err = transport.ErrNoQueue
	}
	return q, wrap(err, "ask the management API for queue %q", name)
}

// reported returns a queue as soon as the broker has reported which policies apply to it.
func (m *management) reported(ctx context.Context, name string) (q managedQueue, err error) {
	err = m.poll(ctx, name, func(now managedQueue) (bool, error) {
		q = now
		return len(now.Effective) > 0 && string(now.Effective) != "null", nil
	})
	return q, err
}

// current is reported, and waits for a newer report where that on a limited queue is older than a
// policy for it, other than except.
func (m *management) current(
	ctx context.Context, name string, v version, except string,
) (managedQueue, error) {
	q, err := m.reported(ctx, name)
	if err != nil {
		return q, err
	}
	if limit, ok := q.limit(v); !ok || !limit.isLiftable(q) {
		return q, nil
	}
	if has, err := m.hasPolicyFor(ctx, name, except); err != nil || !has {
		return q, err
	}
	err = m.poll(ctx, name, func(now managedQueue) (bool, error) {
		q = now
		return now.Policy != "", nil
	})
	return q, err
}

// poll asks for a queue until done returns true.
func (m *management) poll(
	ctx context.Context, name string, done func(managedQueue) (bool, error),
) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for {
		q, err := m.queue(ctx, name)
		if err != nil {
			return err
		}
		if ok, err := done(q); ok || err != nil {
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return wrap(err, "wait for the policies of queue %q in the management API", name)
		}
	}
}

// harmful are the settings of policies by which a queue drops or refuses messages. Where a queue
// has an argument and a policy has another number, RabbitMQ takes the smaller one.
var harmful = []string{"expires", "max-length", "max-length-bytes", "message-ttl"}

// harm returns a finding about a policy that drops or refuses messages of a queue.
func (q managedQueue) harm(name string) (f transport.Finding, ok bool) {
	all := settings(q.Effective)
	var found []string
	for _, key := range harmful {
		if value, ok := all[key]; ok {
			found = append(found, fmt.Sprintf("%s %v", key, value))
		}
	}
	return transport.Finding{
		Kind: "queue", Name: name, State: transport.Limited,
		Detail: fmt.Sprintf("policy %s sets %s: exclude the queue from its pattern, or leave that out",
			q.policies(), strings.Join(found, ", ")),
	}, len(found) > 0
}

// policies returns the names of the policies that apply to the queue.
func (q managedQueue) policies() string {
	var names []string
	for _, name := range []string{q.Policy, q.OperatorPolicy} {
		if name != "" {
			names = append(names, strconv.Quote(name))
		}
	}
	return strings.Join(names, " or ")
}
