package sqs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/holdfast-go/holdfast/transport"
)

// fault returns the error of a failed request, with advice where there is some. After Close it is
// ErrClosed.
func (a *account) fault(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if a.closed() {
		return transport.ErrClosed
	}
	advice := ""
	dns, _ := errors.AsType[*net.DNSError](err)
	switch {
	case hasCode(err, noQueueCodes):
		err = transport.ErrNoQueue
	case hasCode(err, expiredCodes):
		advice = "the credentials have expired or are not valid: "
	case hasCode(err, keyCodes):
		advice = "the KMS key cannot be used: look at its state and at its policy, and give the credentials kms:Decrypt, " +
			"and for sending kms:GenerateDataKey: "
	case hasCode(err, deniedCodes):
		advice = "the credentials lack the right to: "
	case withoutCredentials(err):
		advice = "no credentials: set AWS_PROFILE, Transport.Profile or Transport.Config, or give the machine a role: "
	case dns != nil && dns.IsNotFound:
		advice = fmt.Sprintf("the host is unknown: check the region %q and the name server: ", a.region)
	}
	return fmt.Errorf("sqs: %s: %s%w", fmt.Sprintf(format, args...), advice, err)
}

// withoutCredentials reports whether a request was not sent because no credentials were found to
// sign it. The SDK has no error type for that.
func withoutCredentials(err error) bool {
	return errorCode(err) == "" && strings.Contains(err.Error(), "get credentials: ")
}

// errorCode returns AWS's code of an error; "" if AWS did not answer.
func errorCode(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}

func hasCode(err error, codes []string) bool { return slices.Contains(codes, errorCode(err)) }

// isDenied reports whether the credentials lack the right to a request, or to the KMS key that it
// needs.
func isDenied(err error) bool { return hasCode(err, deniedCodes) || hasCode(err, keyCodes) }

func throttled(err error) bool { return hasCode(err, throttleCodes) }

var (
	noQueueCodes = []string{"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"}
	existsCodes  = []string{"QueueAlreadyExists", "QueueNameExists"}
	deletedCodes = []string{"QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently"}
	noTopicCodes = []string{"NotFound", "NotFoundException"}
	expiredCodes = []string{
		"ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException",
		"InvalidSecurity", "RequestExpired", "SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature",
	}
	deniedCodes = []string{"AccessDenied", "AccessDeniedException", "AuthorizationError", "AuthorizationErrorException"}
	// keyCodes are of a KMS key that may not or cannot be used: the names of SNS, of SQS, and of
	// SQS's former protocol.
	keyCodes = []string{
		"KMSAccessDenied", "KMSAccessDeniedException", "KmsAccessDenied", "KMS.AccessDeniedException",
		"KMSDisabled", "KMSDisabledException", "KmsDisabled", "KMS.DisabledException",
		"KMSInvalidState", "KMSInvalidStateException", "KmsInvalidState", "KMS.InvalidStateException",
		"KMSNotFound", "KMSNotFoundException", "KmsNotFound", "KMS.NotFoundException",
		"KMSOptInRequired", "KmsOptInRequired", "KMS.OptInRequired",
		"KmsInvalidKeyUsage", "KMS.InvalidKeyUsageException",
	}
	// contentCodes are of a message that is refused because of its text or its attributes: the
	// names of SQS and of SNS.
	contentCodes = []string{
		"InvalidMessageContents", "InvalidAttributeValue", "InvalidParameterValue", "InvalidParameter", "InvalidParameterValueException",
		"InvalidParameterException", "ParameterValueInvalid",
	}
	// throttleCodes are of requests over a rate limit of SQS, SNS or KMS.
	throttleCodes = []string{
		"RequestThrottled", "RequestThrottledException", "ThrottlingException", "Throttling", "Throttled", "ThrottledException", "OverLimit",
		"TooManyRequestsException", "RequestLimitExceeded", "KMSThrottling", "KMSThrottlingException", "KmsThrottled", "KMS.ThrottlingException",
	}
	// lostCodes are of settles after the end of the lease.
	lostCodes = []string{"ReceiptHandleIsInvalid", "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight"}
)

// unanswered reports whether a failed request may have been carried out: it was sent, and there was
// no answer, or one with a 5xx status.
func unanswered(err error) bool {
	_, sent := errors.AsType[*smithy.OperationError](err)
	return (sent || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) && inconclusive(err)
}

// inconclusive reports whether the error of a request that was sent leaves open whether it was
// carried out.
func inconclusive(err error) bool {
	if unsent(err) {
		return false
	}
	if status := statusOf(err); status != 0 {
		return status >= 500
	}
	return errorCode(err) == ""
}

// unsent reports whether AWS was not reached or accepts no requests at the moment.
func unsent(err error) bool {
	if dial, ok := errors.AsType[*net.OpError](err); ok && (dial.Op == "dial" || dial.Op == "proxyconnect") {
		return true
	}
	return statusOf(err) == http.StatusServiceUnavailable || throttled(err) || errors.Is(err, errPaced) || withoutCredentials(err)
}

// statusOf returns the HTTP status of AWS's answer; 0 if there was none.
func statusOf(err error) int {
	if answer, ok := errors.AsType[*awshttp.ResponseError](err); ok && answer.Response != nil {
		return answer.HTTPStatusCode()
	}
	return 0
}

// beforeSending returns the error of a message that is not sent because another request failed with
// err.
func beforeSending(err error) error {
	if unsent(err) || unanswered(err) {
		return fmt.Errorf("%w: %w", err, transport.ErrUnreachable)
	}
	return err
}

// entryError returns the error of a failed entry of a batch.
func entryError(f *types.BatchResultErrorEntry) error {
	return &smithy.GenericAPIError{Code: value(f.Code), Message: value(f.Message)}
}

// refusedAsAWhole reports whether AWS refused a request for its content, so that parts of it may be
// accepted.
func refusedAsAWhole(err error) bool {
	status := statusOf(err)
	return status >= 400 && status < 500 && errorCode(err) != "" && !throttled(err) && !isDenied(err) &&
		!hasCode(err, noQueueCodes) && !hasCode(err, expiredCodes)
}
