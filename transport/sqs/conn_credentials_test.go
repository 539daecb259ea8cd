package sqs

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// A provider of credentials that hangs, panics or ends its goroutine ends no request.
func TestAProviderOfCredentialsEndsNoRequest(t *testing.T) {
	for name, test := range map[string]struct {
		f    aws.CredentialsProviderFunc
		want string
	}{
		"panic":  {func(context.Context) (aws.Credentials, error) { panic("no") }, "panic: no"},
		"goexit": {func(context.Context) (aws.Credentials, error) { runtime.Goexit(); return aws.Credentials{}, nil }, "Goexit"},
	} {
		if _, err := loaded(t, test.f).Retrieve(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := loaded(t, aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			<-release
			return aws.Credentials{AccessKeyID: "late"}, nil
		}))
		began := time.Now()
		got, err := p.Retrieve(t.Context())
		if took := time.Since(began); !errors.Is(err, errNoCredentials) || got.AccessKeyID != "" || took != credentialsTimeout {
			t.Errorf("after %v: %v", took, err)
		}
		close(release)
	})
	if !aws.IsCredentialsProvider(loaded(t, aws.AnonymousCredentials{}), (*aws.AnonymousCredentials)(nil)) {
		t.Error("the SDK does not recognize anonymous credentials")
	}
}

// loaded returns the provider that the driver gives the SDK.
func loaded(t *testing.T, p aws.CredentialsProvider) aws.CredentialsProvider {
	t.Helper()
	cfg, err := (&Transport{Region: "eu-central-1", Config: &aws.Config{Credentials: p}}).load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Credentials
}
