package sqs

import (
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/holdfast-go/holdfast/transport"
)

// attempts watches the attempts of one request, which the SDK repeats. The error of the request is
// that of the last attempt, and an earlier one may have been carried out. The zero value is ready.
type attempts struct {
	aws.Retryer      // the request's own
	unanswered  bool // at least one attempt
}

// IsErrorRetryable is called for each failed attempt.
func (a *attempts) IsErrorRetryable(err error) bool {
	a.unanswered = a.unanswered || inconclusive(err)
	return !throttled(err) && a.Retryer.IsErrorRetryable(err) // paced repeats throttled requests
}

func (a *attempts) ofSQS(o *sqs.Options) { a.Retryer, o.Retryer = o.Retryer, a }

func (a *attempts) ofSNS(o *sns.Options) { a.Retryer, o.Retryer = o.Retryer, a }

// outcome adds to own, the error of a request to send that failed with err, whether its messages
// may have been sent.
func (a *attempts) outcome(own, err error) error {
	switch {
	case a.unanswered || unanswered(err):
		return fmt.Errorf("%w: %w", own, transport.ErrOutcomeUnknown)
	case unsent(err):
		return fmt.Errorf("%w: %w", own, transport.ErrUnreachable)
	}
	return own
}
