package sqs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/holdfast-go/holdfast/transport"
)

// silent is STS that does not answer.
type silent struct{}

func (silent) GetCallerIdentity(ctx context.Context, _ *sts.GetCallerIdentityInput, _ ...func(*sts.Options)) (*sts.GetCallerIdentityOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestWhoWaitsForTheAccountMayStopWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		by := clients{queues: &fake{}, identity: silent{}.GetCallerIdentity, close: func() {}}
		c, err := openConn(t.Context(), (&Transport{}).withDefaults(), by, transport.Env{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		asks := func(ctx context.Context) error { _, err := c.topicARN(ctx, "Shop.Placed"); return err }
		go func() { _ = asks(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := asks(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
