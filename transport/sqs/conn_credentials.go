package sqs

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/holdfast-go/holdfast/internal/callback"
)

// credentialsTimeout bounds a call of the user's provider of credentials.
const credentialsTimeout = 10 * time.Second

var errNoCredentials = errors.New("sqs: the credentials of Transport.Config were not returned in time")

// bounded is the user's provider of credentials. A request waits for the provider no longer than
// for its own context: the SDK calls the provider for each request, or once for many if the
// provider is an [aws.CredentialsCache].
type bounded struct{ aws.CredentialsProvider }

// Retrieve implements [aws.CredentialsProvider].
func (b bounded) Retrieve(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, credentialsTimeout, errNoCredentials)
	defer cancel()
	var answer aws.Credentials
	err := callback.Run(ctx, func() (err error) {
		answer, err = b.CredentialsProvider.Retrieve(ctx)
		return err
	})
	if err != nil { // a call that was left may write the answer
		return aws.Credentials{}, err
	}
	return answer, nil
}

// IsCredentialsProvider lets the SDK find out what the provider is, such as
// [aws.AnonymousCredentials].
func (b bounded) IsCredentialsProvider(target aws.CredentialsProvider) bool {
	return aws.IsCredentialsProvider(b.CredentialsProvider, target)
}
