// Package servicebus creates, verifies and removes what endpoints have in a namespace of Azure Service Bus, from
// outside.
package servicebus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/transport/asb"
)

// Namespace manages the queues of a namespace. It needs the right to.
type Namespace struct {
	client *admin.Client
	prefix string // of all names: the hierarchy
}

// requestTimeout bounds a request to the administration.
const requestTimeout = 30 * time.Second

// errConnectionString does not say what was given: that has a key.
var errConnectionString = errors.New("the connection string is not valid")

// Of is the namespace that a transport connects to.
func Of(t *asb.Transport) (*Namespace, error) {
	n := &Namespace{}
	if t.Hierarchy != "" {
		n.prefix = t.Hierarchy + "/"
	}
	to, err := administration(t)
	if err != nil {
		return nil, err
	}
	options := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: &http.Client{Timeout: requestTimeout, Transport: redirect{to}},
	}}
	if t.ConnectionString == "" {
		n.client, err = admin.NewClient(t.Namespace, t.Credential, options)
		return n, err
	}
	if n.client, err = admin.NewClientFromConnectionString(t.ConnectionString, options); err != nil {
		return nil, errConnectionString
	}
	return n, nil
}

// administration is where requests go; nil for the namespace itself.
func administration(t *asb.Transport) (*url.URL, error) {
	if t.Administration != "" {
		u, err := url.Parse(t.Administration)
		if err != nil || u.Host == "" {
			return nil, errors.New("the administration is no URL: write http://HOST:PORT or https://HOST")
		}
		return u, nil
	}
	host, emulator := "", false
	for part := range strings.SplitSeq(t.ConnectionString, ";") {
		name, value, _ := strings.Cut(part, "=")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "endpoint":
			if u, err := url.Parse(value); err == nil {
				host = u.Hostname()
			}
		case "usedevelopmentemulator":
			emulator = strings.EqualFold(value, "true")
		}
	}
	if !emulator {
		return nil, nil //nolint:nilnil // as the comment says
	}
	return &url.URL{Scheme: "http", Host: net.JoinHostPort(host, "5300")}, nil
}

// redirect sends requests to another host than that of the namespace.
type redirect struct{ to *url.URL }

func (r redirect) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.to != nil {
		req = req.Clone(req.Context())
		req.URL.Scheme, req.URL.Host = r.to.Scheme, r.to.Host
	}
	return http.DefaultTransport.RoundTrip(req)
}

// Remove deletes queues with what is in them. One that is not there is none to delete.
func (n *Namespace) Remove(ctx context.Context, queues ...string) error {
	for _, q := range queues {
		_, err := n.client.DeleteQueue(ctx, n.prefix+q, nil)
		if err != nil && status(err) != http.StatusNotFound {
			return fmt.Errorf("delete queue %q: %w", q, short(err))
		}
	}
	return nil
}

// status is that of an answer of the administration; 0 where there was none.
func status(err error) int {
	var e *azcore.ResponseError
	if errors.As(err, &e) {
		return e.StatusCode
	}
	return 0
}

// short is err without the dump of the request that the library adds.
func short(err error) error {
	switch code := status(err); code {
	case 0:
		return err
	case http.StatusUnauthorized, http.StatusForbidden:
		return errors.New("no right to manage the namespace")
	default:
		return fmt.Errorf("the administration answers %d %s", code, http.StatusText(code))
	}
}
