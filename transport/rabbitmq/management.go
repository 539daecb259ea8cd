package rabbitmq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// management is the HTTP API of the broker's management plugin (https://www.rabbitmq.com/docs/http-api-reference). A
// nil one is not configured.
type management struct {
	base   string // without user and password
	login  func(context.Context) (Credentials, error)
	vhost  string
	client *http.Client
}

var errManagementURL = errors.New(`rabbitmq: Transport.Management is not valid: write http://user:password@host:15672, ` +
	`with special characters in user and password percent-encoded`)

// newManagement reads Transport.Management. Without a user in it, it uses that of the broker's connections. Errors do
// not quote the text, which holds a password.
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
	m := &management{vhost: cmp.Or(strings.TrimPrefix(broker.Path, "/"), "/"), login: d.ask}
	if user := cmp.Or(u.User, broker.User); user != nil {
		password, _ := user.Password()
		m.login = func(context.Context) (Credentials, error) { return Password(user.Username(), password), nil }
	}
	u.User = nil
	m.base = strings.TrimSuffix(u.String(), "/")
	m.client = &http.Client{
		Timeout:   dialTimeout,
		Transport: &http.Transport{TLSClientConfig: t.TLS.Clone(), Proxy: http.ProxyFromEnvironment},
	}
	return m, nil
}

// managedQueue is a queue in the API.
type managedQueue struct {
	Messages       *int64          `json:"messages"` // with unsettled and dead-lettered ones; null when not known yet
	Ready          *int64          `json:"messages_ready"`
	Policy         string          `json:"policy"`
	OperatorPolicy string          `json:"operator_policy"`
	Effective      json.RawMessage `json:"effective_policy_definition"` // an object, or an empty list for none
}

// queue returns a queue, or fails with [transport.ErrNoQueue].
func (m *management) queue(ctx context.Context, name string) (q managedQueue, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("rabbitmq: ask the management API for queue %q: %w", name, err)
		}
	}()
	address := fmt.Sprintf("%s/api/queues/%s/%s", m.base, url.PathEscape(m.vhost), url.PathEscape(name))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return q, err
	}
	login, err := m.login(ctx)
	if err != nil {
		return q, err
	}
	login.authorize(req)
	answer, err := m.client.Do(req)
	if err != nil {
		return q, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return q, transport.ErrNoQueue
	case http.StatusUnauthorized, http.StatusForbidden:
		return q, fmt.Errorf("it says %s: give the user the tag \"monitoring\" and a right in virtual host %q", answer.Status, m.vhost)
	default:
		return q, fmt.Errorf("it says %s", answer.Status)
	}
	return q, json.NewDecoder(answer.Body).Decode(&q)
}

// harmful are the settings of policies by which a queue drops or refuses messages. Where a queue has an argument and a
// policy has another number, RabbitMQ takes the smaller one.
var harmful = []string{"expires", "max-length", "max-length-bytes", "message-ttl"}

// finding returns a policy that drops or refuses messages of a queue.
func (q managedQueue) finding(name string) (f transport.Finding, ok bool) {
	var settings map[string]any
	if json.Unmarshal(q.Effective, &settings) != nil { // [] is none
		return f, false
	}
	var found []string
	for _, key := range harmful {
		if value, ok := settings[key]; ok {
			found = append(found, fmt.Sprintf("%s %v", key, value))
		}
	}
	if len(found) == 0 {
		return f, false
	}
	var policies []string
	for _, name := range []string{q.Policy, q.OperatorPolicy} {
		if name != "" {
			policies = append(policies, strconv.Quote(name))
		}
	}
	return transport.Finding{
		Kind: "queue", Name: name, State: transport.Limited,
		Detail: fmt.Sprintf("policy %s sets %s: exclude the queue from its pattern, or leave that out",
			strings.Join(policies, " or "), strings.Join(found, ", ")),
	}, true
}

// policies returns the queues among the parts that policies limit.
func (c *schema) policies(ctx context.Context, parts []part) ([]transport.Finding, error) {
	if c.management == nil {
		return []transport.Finding{{
			Kind: "policies", State: transport.Unread,
			Detail: "policies that drop or refuse messages (max-length, message-ttl, expires) were not read: " +
				"set Transport.Management, or management=http://host:15672 in the URL, or see rabbitmqctl list_policies",
		}}, nil
	}
	var findings []transport.Finding
	for _, p := range parts {
		if p.exchange != "" {
			continue
		}
		q, err := c.management.queue(ctx, p.name)
		if errors.Is(err, transport.ErrNoQueue) {
			continue // found already
		}
		if err != nil {
			return nil, err
		}
		if f, ok := q.finding(p.name); ok {
			findings = append(findings, f)
		}
	}
	return findings, nil
}
