package postgres

import (
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// A claim is bounded by the size of what it returns, however many messages are asked for.
func TestAClaimOfLargeMessagesKeepsToItsBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	const body, bound = 10 << 20, 64 << 20
	w.exec(`INSERT INTO %sin (headers, body) SELECT '{}', convert_to(repeat('x', $1), 'UTF8') FROM generate_series(1, 60)`, body)
	r := receiver(t, w.open(), "in").(transport.ByteReceiver)
	ds, err := r.ReceiveBytes(t.Context(), 50, bound)
	ok(t, err)
	size := 0
	for _, d := range ds {
		size += len(d.Message().Body)
	}
	if len(ds) != 6 || size > bound {
		t.Errorf("%d messages of %d bytes, want 6 of at most %d", len(ds), size, bound)
	}
	ds, err = r.ReceiveBytes(t.Context(), 50, 1)
	ok(t, err)
	if len(ds) != 1 {
		t.Errorf("%d messages, want one whatever its size", len(ds))
	}
}
