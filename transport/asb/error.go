package asb

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"

	"github.com/holdfast-go/holdfast/transport"
)

// Conditions of the protocol and of the service.
const (
	entityDisabled   = amqp.ErrCond("com.microsoft:entity-disabled")
	serverBusy       = amqp.ErrCond("com.microsoft:server-busy")
	lockLost         = amqp.ErrCond("com.microsoft:message-lock-lost")
	serviceTimeout   = amqp.ErrCond("com.microsoft:timeout")
	serviceCancelled = amqp.ErrCond("com.microsoft:operation-cancelled")
)

var (
	errRights  = errors.New("no right to do that, or a key that the namespace does not know: check the key, and that it has the rights to send and to listen")
	errManage  = errors.New("no right to manage the namespace")
	errBusy    = errors.New("the service is busy and refuses requests for a while: the namespace is throttled")
	errFull    = errors.New("the queue or topic is full, or a quota is reached")
	errFailed  = errors.New("the service failed to carry out the request")
	errRefused = errors.New("the broker says")
	errLost    = errors.New("the connection was lost")
	errNoReply = errors.New("no answer in time")
)

// plain returns an error of the client library as one of the driver's or of package transport, with the broker's text.
func plain(err error) error {
	if err == nil || known(err) {
		return err
	}
	var e *azservicebus.Error
	if errors.As(err, &e) {
		switch e.Code { //nolint:exhaustive // the cases below handle the others
		case azservicebus.CodeLockLost:
			return transport.ErrLeaseLost
		case azservicebus.CodeNotFound:
			return fmt.Errorf("%w: the broker says: %s", transport.ErrNoQueue, reason(err))
		case azservicebus.CodeUnauthorizedAccess:
			return fmt.Errorf("%w: the broker says: %s", errRights, reason(err))
		}
	}
	if code := answerCode(err); code != 0 {
		return ofStatus(code, err)
	}
	var a *amqp.Error
	if errors.As(err, &a) {
		return ofCondition(a, err)
	}
	if rejected(err) {
		return fmt.Errorf("%w: %s", errRefused, reason(err))
	}
	if e != nil && e.Code == azservicebus.CodeConnectionLost {
		return fmt.Errorf("%w: %s", errLost, reason(err))
	}
	return err
}

// known reports whether err is one of the driver's own.
func known(err error) bool {
	return said(err) || errors.Is(err, transport.ErrClosed) || errors.Is(err, errLost)
}

// answerText begins the library's text of a refusal over $management or $cbs.
const answerText = "rpc: failed, status code "

// answerCode returns the status of an answer over $management or $cbs, or 0 if err is none. If the library takes the
// status for one that ends the connection, only the text of its error shows it.
func answerCode(err error) int {
	var answer interface {
		error
		RPCCode() int
	}
	if errors.As(err, &answer) {
		return answer.RPCCode()
	}
	var e *azservicebus.Error
	if !errors.As(err, &e) {
		return 0
	}
	_, text, _ := strings.Cut(e.Error(), answerText)
	digits, _, _ := strings.Cut(text, " ")
	code, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return code
}

// ofMessage are the conditions by which the broker refuses the content of a message. They do not end the link.
var ofMessage = []string{
	"com.microsoft:argument-error", "com.microsoft:argument-out-of-range",
	"amqp:decode-error", "amqp:invalid-field", "amqp:precondition-failed", "amqp:not-implemented",
}

// rejected reports whether err is one of these conditions. The library takes unknown conditions for the end of the
// connection, and only the text of its error shows them.
func rejected(err error) bool {
	var e *azservicebus.Error
	if !errors.As(err, &e) || e.Code != azservicebus.CodeConnectionLost {
		return false
	}
	_, text, _ := strings.Cut(e.Error(), "{Condition: ")
	condition, _, _ := strings.Cut(text, ",")
	return slices.Contains(ofMessage, condition)
}

func busyStatus(code int) bool {
	return code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
}

// ofStatus returns the error of a status.
func ofStatus(code int, err error) error {
	switch {
	case busyStatus(code):
		return fmt.Errorf("%w: the broker says: status %d: %s", errBusy, code, reason(err))
	case code == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: the broker says: status %d: %s", transport.ErrTooLarge, code, reason(err))
	case code >= http.StatusInternalServerError:
		return fmt.Errorf("%w: the broker says: status %d: %s", errFailed, code, reason(err))
	}
	return fmt.Errorf("%w: status %d: %s", errRefused, code, reason(err))
}

func ofCondition(a *amqp.Error, err error) error {
	switch a.Condition {
	case lockLost:
		return transport.ErrLeaseLost
	case amqp.ErrCondNotFound:
		return fmt.Errorf("%w: the broker says: %s", transport.ErrNoQueue, reason(a))
	case entityDisabled:
		return fmt.Errorf("%w: it is disabled: the broker says: %s", transport.ErrNoQueue, reason(a))
	case amqp.ErrCondUnauthorizedAccess:
		return fmt.Errorf("%w: the broker says: %s", errRights, reason(a))
	case serverBusy:
		return fmt.Errorf("%w: the broker says: %s", errBusy, reason(a))
	case amqp.ErrCondResourceLimitExceeded:
		return fmt.Errorf("%w: the broker says: %s", errFull, reason(a))
	case serviceTimeout, serviceCancelled, amqp.ErrCondInternalError:
		return fmt.Errorf("%w: the broker says: %s", errFailed, reason(a))
	}
	return fmt.Errorf("%w: %s", errRefused, reason(err))
}

// reason returns the broker's text without the library's dump of fields.
func reason(err error) string {
	var a *amqp.Error
	if errors.As(err, &a) {
		return strings.TrimSpace(string(a.Condition) + " " + a.Description)
	}
	s := err.Error()
	if _, after, ok := strings.Cut(s, "escription: "); ok {
		s, _, _ = strings.Cut(after, ", Info: ")
	}
	const most = 500
	return fmt.Sprintf("%.*s", most, s)
}

// ofLink reports whether the broker has accepted the credential and refused the link. Only the text of the library's
// error shows the difference.
func ofLink(err error) bool {
	var e *azservicebus.Error
	return errors.As(err, &e) && e.Code == azservicebus.CodeUnauthorizedAccess && !strings.Contains(err.Error(), "rpc: ")
}

// refused reports whether the broker has refused the request, so that it certainly had no effect.
func refused(err error) bool {
	var a *amqp.Error
	var lost *amqp.ConnError
	var detached *amqp.LinkError
	switch {
	case errors.As(err, &lost), errors.As(err, &detached):
		return false
	case errors.As(err, &a), answerCode(err) != 0, rejected(err), errors.Is(err, azservicebus.ErrMessageTooLarge):
		return true
	}
	var e *azservicebus.Error
	return errors.As(err, &e) && (e.Code == azservicebus.CodeNotFound || e.Code == azservicebus.CodeUnauthorizedAccess)
}

// said reports whether err, which plain returned, is an answer of the broker.
func said(err error) bool {
	return oneOf(err, transport.ErrLeaseLost, transport.ErrNoQueue, transport.ErrTooLarge, errRights, errBusy, errFull, errFailed, errRefused)
}

// answered reports whether the broker has answered: err is nil, or the broker has refused the request or failed to
// carry it out.
func answered(err error) bool { return err == nil || refused(err) || said(plain(err)) }

func oneOf(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// whole reports whether the broker refuses any request to this destination, and not only this one for its content.
func whole(err error) bool {
	return oneOf(plain(err), errBusy, errFailed, transport.ErrNoQueue, errRights, errFull)
}

// status returns the HTTP status of an error of the administration, or 0 if there was no answer.
func status(err error) int {
	var e *azcore.ResponseError
	if errors.As(err, &e) {
		return e.StatusCode
	}
	return 0
}

// wrap adds the failed act and its object to a plain error.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("asb: "+format+": %w", append(args, plain(err))...)
}
