package inbox

import (
	"encoding/binary"
	"testing"
)

// Only the last attempts are remembered: an attempt that has begun is never reported as the first
// of its message.
func TestAForgottenAttemptIsNotTheFirst(t *testing.T) {
	key := func(n int) (k [16]byte) {
		binary.BigEndian.PutUint64(k[:], uint64(n))
		return k
	}
	for others := 0; others <= 5*generation; others += generation / 4 {
		var b begun
		before := b.count()
		if !b.isFirst(key(0), before) {
			t.Fatal("the only attempt is not the first")
		}
		for n := range others {
			b.isFirst(key(n+1), b.count())
		}
		if b.isFirst(key(0), before) {
			t.Errorf("after %d other attempts a second one is the first of its message", others)
		}
	}
}
