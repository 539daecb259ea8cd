package asb

import (
	"cmp"
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

var (
	errRights  = errors.New("no right to do that, or a key that the namespace does not know: check the key, and that it has the rights to send and to listen")
	errManage  = errors.New("no right to manage the namespace")
	errBusy    = errors.New("the service is busy and refuses requests for a while: the namespace is throttled")
	errOff     = errors.New("the queue or topic is disabled: set its status to Active")
	errFull    = fmt.Errorf("the queue or topic is full, or a quota is reached: %w", transport.ErrFull)
	errFailed  = errors.New("the service failed to carry out the request")
	errRefused = errors.New("the broker says")
	errLost    = errors.New("the connection was lost")
	errNoReply = errors.New("no answer in time")
)

// ofCondition are the errors for the conditions by which the service refuses a request. errRefused
// is that for others.
var ofCondition = map[amqp.ErrCond]error{
	"com.microsoft:message-lock-lost":   transport.ErrLeaseLost,
	amqp.ErrCondNotFound:                transport.ErrNoQueue,
	entityDisabled:                      errOff,
	amqp.ErrCondUnauthorizedAccess:      errRights,
	"com.microsoft:server-busy":         errBusy,
	amqp.ErrCondResourceLimitExceeded:   errFull,
	"com.microsoft:timeout":             errFailed,
	"com.microsoft:operation-cancelled": errFailed,
	amqp.ErrCondInternalError:           errFailed,
}

// entityDisabled is the condition by which the service refuses an entity whose status is Disabled,
// SendDisabled or ReceiveDisabled. Such an entity exists: its messages wait, and a topic may have
// subscribers.
const entityDisabled = amqp.ErrCond("com.microsoft:entity-disabled")

// plain returns an error of the client library as one of the driver's or of package transport, with
// the broker's text.
func plain(err error) error {
	if err == nil || said(err) || oneOf(err, transport.ErrClosed, errLost) {
		return err
	}
	kind, text := kindOf(err), reason(err)
	if code := answerCode(err); code != 0 {
		text = fmt.Sprintf("status %d: %s", code, text)
	}
	switch {
	case kind == nil:
		return err
	case errors.Is(kind, transport.ErrLeaseLost):
		return kind
	case oneOf(kind, errRefused, errLost):
		return fmt.Errorf("%w: %s", kind, text)
	}
	return fmt.Errorf("%w: the broker says: %s", kind, text)
}

// kindOf returns the error that stands for one of the client library, or nil if there is none.
func kindOf(err error) error {
	code, status := codeOf(err), answerCode(err)
	a, ok := errors.AsType[*amqp.Error](err)
	switch {
	case code == azservicebus.CodeLockLost:
		return transport.ErrLeaseLost
	case strings.Contains(err.Error(), string(entityDisabled)),
		status == http.StatusForbidden && strings.Contains(err.Error(), "disabled"): // over $management
		return errOff
	case code == azservicebus.CodeNotFound:
		return transport.ErrNoQueue
	case code == azservicebus.CodeUnauthorizedAccess:
		return errRights
	case busyStatus(status):
		return errBusy
	case status == http.StatusRequestEntityTooLarge:
		return transport.ErrTooLarge
	case status >= http.StatusInternalServerError:
		return errFailed
	case ok && status == 0:
		return cmp.Or(ofCondition[a.Condition], errRefused)
	case status != 0, rejected(err):
		return errRefused
	case code == azservicebus.CodeConnectionLost:
		return errLost
	}
	return nil
}

// codeOf returns the client library's code of an error, or "" if it has none.
func codeOf(err error) azservicebus.Code {
	if e, ok := errors.AsType[*azservicebus.Error](err); ok {
		return e.Code
	}
	return ""
}

// answerText begins the library's text of a refusal over $management or $cbs.
const answerText = "rpc: failed, status code "

// answerCode returns the status of an answer over $management or $cbs, or 0 if err is none. If the
// library takes the status for one that ends the connection, only the text of its error shows it.
func answerCode(err error) int {
	answer, ok := errors.AsType[interface {
		error
		RPCCode() int
	}](err)
	if ok {
		return answer.RPCCode()
	}
	if codeOf(err) == "" {
		return 0
	}
	_, text, _ := strings.Cut(err.Error(), answerText)
	digits, _, _ := strings.Cut(text, " ")
	code, _ := strconv.Atoi(digits) // else 0
	return code
}

// ofMessage are the conditions by which the broker refuses the content of a message. They do not
// end the link.
var ofMessage = []string{
	"com.microsoft:argument-error", "com.microsoft:argument-out-of-range",
	"amqp:decode-error", "amqp:invalid-field", "amqp:precondition-failed", "amqp:not-implemented",
}

// rejected reports whether err is one of these conditions. The library takes unknown conditions for
// the end of the connection, and only the text of its error shows them.
func rejected(err error) bool {
	if codeOf(err) != azservicebus.CodeConnectionLost {
		return false
	}
	_, text, _ := strings.Cut(err.Error(), "{Condition: ")
	condition, _, _ := strings.Cut(text, ",")
	return slices.Contains(ofMessage, condition)
}

// refusesContent reports whether the broker refuses a message because of its content, such as
// properties of more than 64 KiB.
func refusesContent(err error) bool {
	a, ok := errors.AsType[*amqp.Error](err)
	switch {
	case whole(err):
		return false
	case ok && answerCode(err) == 0:
		return a.Condition == amqp.ErrCondNotAllowed || slices.Contains(ofMessage, string(a.Condition))
	}
	return rejected(err) || answerCode(err) == http.StatusBadRequest
}

func busyStatus(code int) bool {
	return code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
}

// reason returns the broker's text without the library's dump of fields.
func reason(err error) string {
	if a, ok := errors.AsType[*amqp.Error](err); ok {
		return strings.TrimSpace(string(a.Condition) + " " + a.Description)
	}
	s := err.Error()
	if _, after, ok := strings.Cut(s, "escription: "); ok {
		s, _, _ = strings.Cut(after, ", Info: ")
	}
	const most = 500
	return fmt.Sprintf("%.*s", most, s)
}

// refused reports whether the broker has refused the request, so that it certainly had no effect.
func refused(err error) bool {
	code := codeOf(err)
	return !is[*amqp.ConnError](err) && !is[*amqp.LinkError](err) &&
		(is[*amqp.Error](err) || code == azservicebus.CodeNotFound || code == azservicebus.CodeUnauthorizedAccess ||
			answerCode(err) != 0 || rejected(err) || errors.Is(err, azservicebus.ErrMessageTooLarge))
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// said reports whether err, which plain returned, is an answer of the broker.
func said(err error) bool {
	return oneOf(err, transport.ErrLeaseLost, transport.ErrNoQueue, transport.ErrTooLarge, errRights, errBusy, errOff, errFull, errFailed, errRefused)
}

// answered reports whether the broker has answered: err is nil, or the broker has refused the
// request or failed to carry it out.
func answered(err error) bool { return err == nil || refused(err) || said(plain(err)) }

func oneOf(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// whole reports whether the broker refuses any request to this destination, and not only this one
// for its content.
func whole(err error) bool {
	return oneOf(plain(err), errBusy, errFailed, transport.ErrNoQueue, errRights, errOff, errFull)
}

// endsLink reports whether the service may have ended the link with err: the library goes on with
// such a link.
func endsLink(err error) bool {
	return oneOf(plain(err), errRights, errOff, transport.ErrNoQueue)
}

// mayHaveEnded reports whether the service may have ended the $management link of a request with
// err. It has not if the request has an answer with a status, such as that of a throttled
// namespace.
func mayHaveEnded(err error) bool {
	return err != nil && answerCode(err) == 0 && (!done(plain(err)) || endsLink(err))
}

// status returns the HTTP status of an error of the administration, or 0 if there was no answer.
func status(err error) int {
	if e, ok := errors.AsType[*azcore.ResponseError](err); ok {
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
