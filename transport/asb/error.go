package asb

import (
	"errors"
	"fmt"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"

	"github.com/holdfast-go/holdfast/transport"
)

// Conditions of the protocol, and of the service.
const (
	entityDisabled = amqp.ErrCond("com.microsoft:entity-disabled")
	serverBusy     = amqp.ErrCond("com.microsoft:server-busy")
	lockLost       = amqp.ErrCond("com.microsoft:message-lock-lost")
)

var (
	errRights  = errors.New("no right to do that, or a key that the namespace does not know: check the key, and that it has the rights to send and to listen")
	errManage  = errors.New("no right to manage the namespace")
	errBusy    = errors.New("the service is busy and refuses requests for a while: the namespace is throttled")
	errFull    = errors.New("the queue or topic is full, or a quota is reached")
	errLost    = errors.New("the connection was lost")
	errNoReply = errors.New("no answer in time")
)

// plain is an error of the client library in words, and as what it means to the endpoint.
func plain(err error) error {
	if err == nil || known(err) {
		return err
	}
	var e *azservicebus.Error
	if errors.As(err, &e) {
		switch e.Code { //nolint:exhaustive // the others are dealt with below, or say all themselves
		case azservicebus.CodeLockLost:
			return transport.ErrLeaseLost
		case azservicebus.CodeNotFound:
			return fmt.Errorf("%w: the broker says: %s", transport.ErrNoQueue, reason(err))
		case azservicebus.CodeUnauthorizedAccess:
			return fmt.Errorf("%w: the broker says: %s", errRights, reason(err))
		}
	}
	var a *amqp.Error
	if errors.As(err, &a) {
		return ofCondition(a, err)
	}
	if e != nil && e.Code == azservicebus.CodeConnectionLost {
		return fmt.Errorf("%w: %s", errLost, reason(err))
	}
	return err
}

// known tells errors that are ours already.
func known(err error) bool {
	for _, target := range []error{transport.ErrLeaseLost, transport.ErrNoQueue, transport.ErrTooLarge, transport.ErrClosed, errRights, errBusy, errFull, errLost} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
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
	}
	return fmt.Errorf("the broker says: %s", reason(err))
}

// reason is what the broker said, without the library's dump of fields.
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

// ofLink tells whether the broker has refused a link, having accepted the credential. The library hides the one from the other in
// its text.
func ofLink(err error) bool {
	var e *azservicebus.Error
	return errors.As(err, &e) && e.Code == azservicebus.CodeUnauthorizedAccess && !strings.Contains(err.Error(), "rpc: ")
}

// refused tells whether the broker has said no, so that it is certain that nothing was done.
func refused(err error) bool {
	var a *amqp.Error
	var lost *amqp.ConnError
	var detached *amqp.LinkError
	switch {
	case errors.As(err, &lost), errors.As(err, &detached):
		return false
	case errors.As(err, &a), errors.Is(err, azservicebus.ErrMessageTooLarge):
		return true
	}
	var e *azservicebus.Error
	return errors.As(err, &e) && (e.Code == azservicebus.CodeNotFound || e.Code == azservicebus.CodeUnauthorizedAccess)
}

// status is the HTTP status of an error of the administration; 0 where there was no answer.
func status(err error) int {
	var e *azcore.ResponseError
	if errors.As(err, &e) {
		return e.StatusCode
	}
	return 0
}

// wrap says what failed, and for which object.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("asb: "+format+": %w", append(args, plain(err))...)
}
