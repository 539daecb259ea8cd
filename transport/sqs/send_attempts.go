package sqs

import (
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/holdfast-go/holdfast/transport"
)

// attempts watches those of one request, which the SDK repeats: its error tells of the last one, and an earlier one may have been
// carried out. The zero value is ready.
type attempts struct {
	aws.Retryer      // the request's own
	unanswered  bool // one of them at least
}

// IsErrorRetryable is asked of each attempt that failed.
func (a *attempts) IsErrorRetryable(err error) bool {
	a.unanswered = a.unanswered || inconclusive(err)
	return !throttled(err) && a.Retryer.IsErrorRetryable(err) // paced repeats those
}

func (a *attempts) ofSQS(o *sqs.Options) { a.Retryer, o.Retryer = o.Retryer, a }

func (a *attempts) ofSNS(o *sns.Options) { a.Retryer, o.Retryer = o.Retryer, a }

// outcome is own, the error of a request to send that failed by err, with what is known of its messages.
func (a *attempts) outcome(own, err error) error {
	switch {
	case a.unanswered || unanswered(err):
		return fmt.Errorf("%w: %w", own, transport.ErrOutcomeUnknown)
	case unsent(err):
		return fmt.Errorf("%w: %w", own, transport.ErrUnreachable)
	}
	return own
}
