package held

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// fakeMessage records what is done with a held message, and is the message of a broken delivery
// from a time on.
type fakeMessage struct {
	refusals int // before the queue accepts the message
	lost     bool
	began    time.Time
	soon     time.Duration // when the delivery ends; 0 is never
	gone     time.Duration // when the delivery is lost; 0 is never
	calls    []string
}

func (m *fakeMessage) TryAgain(context.Context) error {
	m.calls = append(m.calls, "try")
	if m.refusals--; m.refusals >= 0 {
		return errFull
	}
	return nil
}

func (m *fakeMessage) Leave(context.Context) { m.calls = append(m.calls, "leave") }
func (m *fakeMessage) Drop()                 { m.calls = append(m.calls, "drop") }
func (m *fakeMessage) LostLease() bool       { return m.lost }
func (m *fakeMessage) EndsSoon() bool        { return m.soon > 0 && time.Since(m.began) >= m.soon }
func (m *fakeMessage) IsLost() bool          { return m.gone > 0 && time.Since(m.began) >= m.gone }

func TestAHeldMessageEndsOnce(t *testing.T) {
	for _, tt := range []struct {
		name     string
		message  fakeMessage
		stop     time.Duration // 0 is never
		cause    error         // of the end of the context after 500 ms; nil is no end
		calls    []string
		accepted int
	}{
		{name: "accepted", calls: []string{"try"}, accepted: 1},
		{name: "accepted after a refusal", message: fakeMessage{refusals: 1}, calls: []string{"try", "try"}, accepted: 1},
		{name: "the move found no lease", message: fakeMessage{lost: true}, calls: []string{"try"}},
		{
			name: "a stop", message: fakeMessage{refusals: 100}, stop: 1500 * time.Millisecond,
			calls: []string{"try", "leave"},
		},
		{
			name: "the delivery ends soon", message: fakeMessage{refusals: 100, soon: 1500 * time.Millisecond},
			calls: []string{"try", "leave"},
		},
		{
			name: "the delivery is lost", message: fakeMessage{refusals: 100, gone: 1500 * time.Millisecond, soon: time.Millisecond * 1500},
			calls: []string{"try", "drop"},
		},
		{name: "the context ends", cause: context.Canceled, calls: []string{"leave"}},
		{name: "the lease is lost", cause: transport.ErrLeaseLost, calls: []string{"drop"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tt.cause != nil {
					time.AfterFunc(500*time.Millisecond, func() { cancel(tt.cause) })
				}
				stopping := make(chan struct{})
				if tt.stop > 0 {
					time.AfterFunc(tt.stop, func() { close(stopping) })
				}
				var room Room
				place, _ := room.Enter("error", 1, errFull)
				m := tt.message
				m.began = time.Now()
				s := place.Hold(ctx, &m, stopping)
				if s == nil || s.Queue != "error" || s.Accepted != tt.accepted {
					t.Errorf("state %+v, want %d accepted", s, tt.accepted)
				}
				if !slices.Equal(m.calls, tt.calls) {
					t.Errorf("calls %v, want %v", m.calls, tt.calls)
				}
				if left, _ := room.States(); len(left) != 0 {
					t.Errorf("the room is not empty: %+v", left)
				}
			})
		})
	}
}

// panicking is a message whose copy panics.
type panicking struct{ fakeMessage }

func (*panicking) Leave(context.Context) { panic(errors.New("a driver's panic")) }

func TestAPlaceIsFreeAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var room Room
		place, _ := room.Enter("error", 1, errFull)
		stopping := make(chan struct{})
		close(stopping)
		defer func() {
			_ = recover()
			if left, _ := room.States(); len(left) != 0 {
				t.Errorf("the room is not empty: %+v", left)
			}
		}()
		place.Hold(t.Context(), new(panicking), stopping)
	})
}
