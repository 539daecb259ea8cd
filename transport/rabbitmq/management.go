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
	"strings"

	"github.com/holdfast-go/holdfast/internal/callback"
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
