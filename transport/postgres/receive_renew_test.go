package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// A message whose row another session has locked keeps no lease of another message from being
// renewed.
func TestALockedMessageEndsNoOtherLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	const n = 20
	c := w.openAs(Transport{Lease: 2 * time.Second})
	for range n {
		send(t, c, to("in", msg("x")))
	}
	r := receiver(t, c, "in")
	ds := receive(t, r, n)
	release := w.locked(`SELECT FROM ` + quote(w.schema, "in") + ` WHERE seq = ` + ds[3].Message().NativeID + ` FOR UPDATE`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i, err := range r.(transport.Renewer).Renew(ctx, ds) {
		if (err != nil) != (i == 3) || errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	release()
	for i, err := range r.(transport.Renewer).Renew(ctx, ds) {
		if err != nil {
			t.Errorf("message %d after the lock: %v", i, err)
		}
	}
}
