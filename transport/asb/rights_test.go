package asb_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// says checks that an error has a text and no secret.
func says(t *testing.T, err error, secret string, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that says %q", want)
		return
	}
	for _, s := range want {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v\ndoes not say %q", err, s)
		}
	}
	if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "SharedAccessSignature sr=") {
		t.Errorf("it tells a secret: %v", err)
	}
}

// keyOf returns the secret of a connection string.
func keyOf(connection string) string {
	_, key, _ := strings.Cut(connection, "SharedAccessKey=")
	key, _, _ = strings.Cut(key, ";")
	return key
}

func TestOpenFailsWithAWrongKey(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	const wrong = "d3Jvbmdfa2V5X3dyb25nX2tleV93cm9uZ19rZXlfd3I="
	tr := on(ns)
	tr.ConnectionString = strings.Replace(tr.ConnectionString, keyOf(tr.ConnectionString), wrong, 1)
	_, err := tr.Open(within(t), transport.Env{Endpoint: "sales"})
	says(t, err, wrong, "asb: connect to ", "no right to do that, or a key that the namespace does not know: check the key")
}

func TestOpenFailsWithoutABroker(t *testing.T) {
	tr := &asb.Transport{ConnectionString: "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"}
	_, err := tr.Open(within(t), transport.Env{Endpoint: "sales"})
	says(t, err, "c2VjcmV0", "asb: connect to 127.0.0.1:1: ", "refused")
}

func TestMissingEntitiesAreNamed(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	secret := keyOf(ns.ConnectionString)
	_, err := c.Dispatch(within(t), []transport.Operation{to("missing", "m")})
	says(t, err, secret, `asb: send to "missing": no such queue`)
	_, err = c.OpenReceiver(within(t), transport.ReceiverOptions{Queue: "missing"})
	says(t, err, secret, `asb: receive from "missing": no such queue`)
	if !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("%v is not ErrNoQueue", err)
	}
	_, err = c.(transport.Inspector).Inspect(within(t), "missing")
	says(t, err, secret, `asb: look at queue "missing": no such queue`)
}

// With the rights to send and listen, existing entities are used.
func TestExistingEntitiesNeedNoRightToManage(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	manager := open(t, on(ns))
	install(t, manager, "test", "in")
	subscribe(t, manager, "in", "Shop.Placed")
	tr := on(ns)
	tr.ConnectionString = ns.Control.Restricted("Send", "Listen")
	secret := keyOf(tr.ConnectionString)
	c := open(t, tr)
	install(t, c, "in")
	subscribe(t, c, "in", "Shop.Placed")
	dispatch(t, c, to("in", "m-1"), transport.Operation{Types: []string{"Shop.Placed"}, Message: message("m-2", "")})
	for _, d := range nextN(t, receive(t, c, "in"), 2) {
		must(t, d.Complete(within(t)))
	}
	stats, err := c.(transport.Inspector).Inspect(within(t), "in")
	if err != nil || stats[0] != (transport.QueueStats{Name: "in", Ready: -1, Unsettled: -1, Delayed: -1}) {
		t.Errorf("%+v, %v", stats, err)
	}
	if got, err := c.(transport.Satellites).Satellites(within(t)); err != nil || len(got) != 2 || got[0].Queue != "test/$DeadLetterQueue" {
		t.Errorf("satellites %v, %v", got, err)
	}

	err = c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: "new"}}})
	says(t, err, secret, `asb: install queue "new": no such queue, and the credential has no right to manage the namespace: create the queue by other means`)
	err = c.(transport.Subscriber).Subscribe(within(t), "in", []string{"Shop.Paid"})
	says(t, err, secret, `asb: subscribe queue "in" to ["Shop.Paid"]: there is no subscription "in" of topic "Shop.Paid", and the credential has no right to manage`)
	err = c.(transport.Subscriber).Unsubscribe(within(t), "in", []string{"Shop.Placed"})
	says(t, err, secret, `asb: unsubscribe queue "in" from ["Shop.Placed"]`, "no right to manage the namespace")
}

func TestMissingRightsAreNamed(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	install(t, open(t, on(ns)), "test")
	tr := on(ns)
	tr.ConnectionString = ns.Control.Restricted("Listen")
	c := open(t, tr)
	_, err := c.Dispatch(within(t), []transport.Operation{to("test", "m")})
	says(t, err, keyOf(tr.ConnectionString), `asb: send to "test": no right to do that`)
	if errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("what was refused is certain: %v", err)
	}
	tr.ConnectionString = ns.Control.Restricted("Send")
	c = open(t, tr)
	dispatch(t, c, to("test", "m"))
	_, err = c.OpenReceiver(within(t), transport.ReceiverOptions{Queue: "test"})
	says(t, err, keyOf(tr.ConnectionString), `asb: receive from "test": no right to do that`)
}

// tokens is a credential like those of package azidentity.
type tokens string

func (s tokens) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(s), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

var errNoToken = errors.New("no identity here")

type noTokens struct{}

func (noTokens) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{}, errNoToken
}

func TestAnIdentityWithoutATokenIsAnError(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	tr := &asb.Transport{Namespace: hostOf(t, ns), Credential: noTokens{}, Administration: ns.Admin, WebSocket: plainly(t, ns)}
	_, err := tr.Open(within(t), transport.Env{Endpoint: "sales"})
	says(t, err, "-", "asb: connect to ", "no identity here")
}

func TestAnIdentityIsACredential(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	install(t, open(t, on(ns)), "in")
	const token = "a-token"
	ns.Control.Admit(token, "Send", "Listen")
	host, address, config := ns.TLS(t)
	tr := &asb.Transport{Namespace: host, Address: address, TLS: config, Credential: tokens(token), Administration: ns.Admin}
	c := open(t, tr)
	dispatch(t, c, to("in", "m"))
	must(t, next(t, receive(t, c, "in")).Complete(within(t)))

	tr.TLS = nil
	_, err := tr.Open(within(t), transport.Env{Endpoint: "sales"})
	says(t, err, token, "asb: connect to "+address, "certificate")
}

func TestAWebSocketIsAConnection(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.WebSocket = plainly(t, ns)
	c := open(t, tr)
	install(t, c, "in")
	dispatch(t, c, to("in", "m"))
	must(t, next(t, receive(t, c, "in")).Complete(within(t)))
}
