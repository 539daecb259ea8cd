package rabbitmq

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// settling is a logger that settles a delivery when it is called.
type settling struct {
	slog.Handler
	d    *delivery
	told *int
}

func (l settling) Enabled(context.Context, slog.Level) bool { return true }

func (l settling) Handle(ctx context.Context, _ slog.Record) error {
	*l.told++
	return l.d.Release(ctx)
}

func TestALoggerMaySettleTheMessageOfAWarning(t *testing.T) {
	s, ds := lostChannel(2)
	told := 0
	s.receiver.of.log = slog.New(settling{slog.DiscardHandler, ds[1], &told})
	s.receiver.of.maxHold = time.Minute
	now := time.Now()
	ds[0].arrivedAt, ds[1].arrivedAt = now.Add(-55*time.Second), now
	s.watchTimeouts(t.Context(), now)
	s.watchTimeouts(t.Context(), now)
	if told != 1 || ds[1].state != stateSettled {
		t.Errorf("told %d times, settled is %t", told, ds[1].state == stateSettled)
	}
}
