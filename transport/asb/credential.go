package asb

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/callback"
)

const (
	// A pause after an error of a credential is half of credentialMin at least.
	credentialMin = 2 * time.Second
	credentialMax = 30 * time.Second
	// credentialWait is how long a request waits for the end of a pause. It is shorter than
	// closeTimeout, because the client library waits for its refresh of a token before it closes a
	// link.
	credentialWait = time.Second
	// credentialTimeout bounds a call of the credential.
	credentialTimeout = 30 * time.Second
)

var errTokenLate = errors.New("asb: Transport.Credential has returned no token in time")

// credential is the user's credential with a memory of its last error. The client library repeats a
// refresh that fails without any pause, once for each link. After an error the credential is asked
// again once after each pause, until it returns a token.
type credential struct {
	azcore.TokenCredential

	mu     sync.Mutex // guards the fields below
	err    error      // the last answer; nil for a token
	until  time.Time  // end of the pause after err
	asking bool       // a request after a pause is in flight
	pace   backoff.Backoff
}

func newCredential(of azcore.TokenCredential) *credential {
	return &credential{TokenCredential: of, pace: backoff.Backoff{Min: credentialMin, Max: credentialMax}}
}

// GetToken implements [azcore.TokenCredential]. During a pause it waits up to credentialWait, and
// returns the remembered error.
func (c *credential) GetToken(
	ctx context.Context, options policy.TokenRequestOptions,
) (azcore.AccessToken, error) {
	patience := time.Now().Add(credentialWait)
	for {
		pause, err := c.begin()
		if pause <= 0 {
			return c.ask(ctx, options)
		}
		left := time.Until(patience)
		if left <= 0 {
			return azcore.AccessToken{}, err
		}
		if err := backoff.Sleep(ctx, min(pause, left)); err != nil {
			return azcore.AccessToken{}, err
		}
	}
}

// begin returns zero if the credential may be asked now, else the time until that is worth another
// look, and the last error.
func (c *credential) begin() (pause time.Duration, last error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err == nil:
		return 0, nil
	case c.asking:
		return credentialWait, c.err
	}
	if pause = time.Until(c.until); pause <= 0 {
		c.asking = true
	}
	return pause, c.err
}

// ask calls the user's credential. The client library waits for a refresh of a token without any
// limit.
func (c *credential) ask(
	ctx context.Context, options policy.TokenRequestOptions,
) (azcore.AccessToken, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, credentialTimeout, errTokenLate)
	defer cancel()
	var answer azcore.AccessToken
	err := callback.Run(bounded, func() (err error) {
		answer, err = c.TokenCredential.GetToken(bounded, options)
		return err
	})
	c.end(err, ctx.Err() != nil)
	if err != nil { // a call that was left may write the answer
		return azcore.AccessToken{}, err
	}
	return answer, nil
}

// end records the outcome of a request. An error of a request whose context has ended says nothing
// about the credential.
func (c *credential) end(err error, canceled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking = false
	switch {
	case err == nil:
		c.err = nil
		c.pace.Reset()
	case canceled:
	case c.err == nil || !time.Now().Before(c.until): // else another request has failed at the same time
		c.err = err
		c.until = time.Now().Add(c.pace.Next())
	}
}
