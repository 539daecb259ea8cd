package asb

import (
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

func TestExpiredDeadLettersAreDropped(t *testing.T) {
	handle := deadLettered("work")
	ops, err := handle(t.Context(), &transport.Message{Native: map[string]string{PropertyDeadLetterReason: expiredReason}})
	if err != nil || ops != nil {
		t.Errorf("an expired message: %v, %v, want it to be completed", ops, err)
	}
	_, err = handle(t.Context(), &transport.Message{Native: map[string]string{PropertyDeadLetterReason: "MaxDeliveryCountExceeded"}})
	var dead *transport.DeadLetteredError
	if !errors.As(err, &dead) || dead.Queue != "work" {
		t.Errorf("another: %v, want it to be moved to the error queue", err)
	}
}
