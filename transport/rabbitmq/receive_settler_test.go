package rabbitmq

import (
	"testing"
	"testing/synctest"
	"time"
)

type acknowledger struct{}

func (acknowledger) Ack(uint64, bool) error        { return nil }
func (acknowledger) Nack(uint64, bool, bool) error { return nil }
func (acknowledger) Reject(uint64, bool) error     { return nil }

func TestSettlementsThatMayNotBeApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settler{ch: acknowledger{}}
		frames := []func() error{
			func() error { return s.ack(1, true) }, func() error { return s.requeue(1) }, func() error { return s.reject(1) },
		}
		write := func(n int) {
			for i := range n {
				if err := frames[i%len(frames)](); err != nil {
					t.Fatal(err)
				}
			}
		}
		unapplied := func(want time.Duration) {
			t.Helper()
			if got := s.unapplied(time.Now()); got != want {
				t.Errorf("the channel must stay open for %v, want %v", got, want)
			}
		}
		unapplied(0)
		write(sentAhead - 1)
		unapplied(0)
		time.Sleep(appliedWithin / 2)
		write(1)
		unapplied(appliedWithin)
		time.Sleep(appliedWithin / 4)
		unapplied(appliedWithin * 3 / 4)
		time.Sleep(appliedWithin / 4)
		unapplied(0) // the first ones are applied, and one frame is none too many
		write(sentAhead)
		time.Sleep(appliedWithin - time.Millisecond)
		unapplied(time.Millisecond)
		time.Sleep(time.Millisecond)
		unapplied(0)
	})
}
