package baddays_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// busIdentity is a credential whose tokens the client library refreshes after 2 min, the least time
// that it knows.
type busIdentity string

func (i busIdentity) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(i), ExpiresOn: time.Now().Add(time.Minute)}, nil
}

// serviceBusRefusedTokens refuses the tokens of a running endpoint when they are refreshed.
func serviceBusRefusedTokens(t *testing.T) outcome {
	b := newBus(t, brokertest.OwnServiceBus(t))
	const token, refresh, throttle = "a-token", 2 * time.Minute, 30 * time.Second
	b.ns.Control.Admit(token, "Send", "Listen")
	host, address, config := b.ns.TLS(t)
	b.tr = &asb.Transport{Namespace: host, Address: address, TLS: config, Credential: busIdentity(token), Administration: b.ns.Admin}
	b.run(func(cfg *endpoint.Config) { cfg.Install = false }, func(context.Context, *endpoint.Session, busJob) error { return nil })
	b.await("it runs", func(queues map[string]brokertest.ServiceBusQueue) bool { return queues["work"].Links > 0 })
	<-time.After(refresh - 20*time.Second)
	b.ns.Control.Set(brokertest.ServiceBusFaults{Claims: brokertest.ServiceBusRefusal{Status: 503}})
	before := b.ns.Control.State()
	<-time.After(20*time.Second + throttle)
	claims := b.ns.Control.State().Counts.Claims - before.Counts.Claims
	b.ns.Control.Set(brokertest.ServiceBusFaults{})
	b.send(1)
	took := b.await("the message is handled", func(queues map[string]brokertest.ServiceBusQueue) bool { return queues["work"].Active == 0 })
	// Each token is shown once, and then one a second on each connection.
	if most := 60 + before.Counts.Open*int(throttle/time.Second); claims == 0 || claims > most {
		t.Errorf("%d tokens were shown in %v, want 1 to %d", claims, throttle, most)
	}
	return outcome{message: fmt.Sprintf("%d tokens were shown on %d connections in %v", claims, before.Counts.Open, throttle), neighbours: "messages are handled", normal: took}
}
