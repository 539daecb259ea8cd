package endpoint_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// While the rows of messages that were sent cannot be removed, they stay leased: none is sent twice, and Health says why the
// relay does not go on.
func TestRowsThatCannotBeRemovedAreNotSentAgain(t *testing.T) {
	for _, failing := range []error{transport.ErrDenied, transport.ErrUnreachable, transport.ErrOutcomeUnknown} {
		withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
			var away atomic.Bool
			away.Store(true)
			db.Fail = func(verb, object string) error {
				if verb == "Complete" && object == "sales.outbox" && away.Load() {
					return fmt.Errorf("delete: %w", failing)
				}
				return nil
			}
			r := start(t, storing(broker, db, new(tally)))
			const messages = 10
			for n := range messages {
				r.send(placeOrder{ID: fmt.Sprint(n)})
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			reasons := strings.Join(r.Health().Reasons, "; ")
			if !strings.Contains(reasons, "removing sent messages from the outbox has been failing") {
				t.Errorf("reasons %q", reasons)
			}
			if says := strings.Contains(reasons, "grant SELECT, INSERT, UPDATE and DELETE"); says != errors.Is(failing, transport.ErrDenied) {
				t.Errorf("reasons %q", reasons)
			}
			away.Store(false)
			time.Sleep(time.Minute)
			synctest.Wait()
			if n, left := len(broker.Messages("shipping")), len(db.Messages("sales.outbox")); n != messages || left > 0 || !r.Health().Ready {
				t.Errorf("%d messages were sent, %d rows are left, health %+v", n, left, r.Health())
			}
			r.end()
		})
	}
}
