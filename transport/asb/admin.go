package asb

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/transport"
)

// idleTimeout is how long an idle connection to the administration is kept.
const idleTimeout = 90 * time.Second

// administration manages queues and topics over HTTP. It needs the right to manage the namespace.
// Without it the driver browses an entity to find out whether it exists.
type administration struct {
	*admin.Client
	http *http.Transport
}

func newAdministration(ns *namespace) (*administration, error) {
	a := &administration{http: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2: true, IdleConnTimeout: idleTimeout,
	}}
	if usual, ok := http.DefaultTransport.(*http.Transport); ok { // the program may have put another one there
		a.http = usual.Clone()
	}
	if ns.TLS != nil {
		a.http.TLSClientConfig = callback.TLS(ns.TLS)
	}
	options := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: &redirect{to: ns.manage, client: &http.Client{Transport: a.http}},
		Retry:     policy.RetryOptions{MaxRetries: 3, RetryDelay: 200 * time.Millisecond, MaxRetryDelay: 2 * time.Second},
		Telemetry: policy.TelemetryOptions{ApplicationID: "holdfast"},
	}}
	var err error
	if ns.ConnectionString != "" {
		if a.Client, err = admin.NewClientFromConnectionString(ns.ConnectionString, options); err != nil {
			err = errConnectionString
		}
	} else {
		a.Client, err = admin.NewClient(ns.Namespace, ns.Credential, options)
	}
	return a, err
}

// redirect sends requests to another host than that of the namespace, such as the management port
// of an emulator.
type redirect struct {
	to     *url.URL // without a host for that of the namespace
	client *http.Client
}

// Do implements [policy.Transporter].
func (r *redirect) Do(req *http.Request) (*http.Response, error) {
	if r.to.Host != "" {
		req.URL.Scheme, req.URL.Host = r.to.Scheme, r.to.Host
	}
	return r.client.Do(req)
}

// quotaReached is in the text of a refusal because of a quota of the namespace, which has the
// status of one for lack of rights.
// https://learn.microsoft.com/azure/service-bus-messaging/service-bus-resource-manager-exceptions
const quotaReached = "SubCode=40300"

// managed returns an error of the administration as one of the driver's own, without the library's
// dump of the request.
func managed(err error) error {
	switch code := status(err); {
	case err == nil:
		return nil
	case code == http.StatusForbidden && strings.Contains(detail(err), quotaReached):
		return fmt.Errorf("%w: the administration says: %.300s", errFull, detail(err))
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return errManage
	case code == http.StatusNotFound:
		return transport.ErrNoQueue
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		return errBusy
	case code != 0:
		return fmt.Errorf("the administration says: %d %.300s", code, detail(err))
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err // without the URL, which may hold more than a host
	}
	return err
}

// detail returns the administration's text for an error.
func detail(err error) string {
	var e *azcore.ResponseError
	if !errors.As(err, &e) {
		return ""
	}
	if e.RawResponse != nil {
		body, failed := runtime.Payload(e.RawResponse) // the library has read it and keeps it
		var answer struct{ Detail string }
		if failed == nil && xml.Unmarshal(body, &answer) == nil && answer.Detail != "" {
			return answer.Detail
		}
	}
	return e.ErrorCode
}

// unmanageable reports whether the credential has no right to manage the namespace.
func unmanageable(err error) bool { return errors.Is(managed(err), errManage) }
