package asb

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/holdfast-go/holdfast/transport"
)

// failing is a credential that returns its error while it has one.
type failing struct {
	calls atomic.Int64
	err   atomic.Pointer[error]
}

func (f *failing) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	f.calls.Add(1)
	if err := f.err.Load(); err != nil {
		return azcore.AccessToken{}, *err
	}
	return azcore.AccessToken{Token: "t"}, nil
}

// The library refreshes the tokens of each link in a loop without pauses.
func TestAFailingCredentialIsCalledAfterPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken, user := errors.New("no identity here"), &failing{}
		user.err.Store(&broken)
		ns, err := newNamespace(&Transport{Namespace: "shop.servicebus.windows.net", Credential: user}, transport.Env{})
		if err != nil {
			t.Fatal(err)
		}
		const links, outage = 20, 10 * time.Minute
		var loops atomic.Int64
		var all sync.WaitGroup
		began := time.Now()
		for range links {
			all.Go(func() {
				for {
					loops.Add(1)
					switch _, err := ns.Credential.GetToken(context.Background(), policy.TokenRequestOptions{}); {
					case err == nil:
						return
					case !errors.Is(err, broken):
						t.Errorf("%v, want the credential's error", err)
					}
				}
			})
		}
		time.Sleep(10 * time.Second)
		if got := user.calls.Load(); got > links+10 {
			t.Errorf("%d calls of the credential in 10 s", got)
		}
		time.Sleep(outage - 10*time.Second)
		if got, most := user.calls.Load(), int64(links+10+outage/(credentialMax/2)); got > most {
			t.Errorf("%d calls of the credential in %v, want at most %d", got, outage, most)
		}
		if got, most := loops.Load(), int64(links*(outage/credentialWait+100)); got > most {
			t.Errorf("%d rounds of the library's loops, want at most %d", got, most)
		}
		user.err.Store(nil)
		all.Wait()
		if took := time.Since(began) - outage; took > credentialMax+credentialWait {
			t.Errorf("the first token came %v after the outage", took)
		}
	})
}

func TestACanceledRequestIsNoErrorOfTheCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken, user := errors.New("canceled"), &failing{}
		user.err.Store(&broken)
		c := newCredential(user)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.GetToken(ctx, policy.TokenRequestOptions{}); err == nil {
			t.Error("a canceled request has got a token")
		}
		user.err.Store(nil)
		began := time.Now()
		if _, err := c.GetToken(t.Context(), policy.TokenRequestOptions{}); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %v, want a token at once", err, time.Since(began))
		}
	})
}
