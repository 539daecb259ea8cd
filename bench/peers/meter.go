package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A meter counts finished messages, and measures the time of the messages after the warm-up. A meter
// is safe for concurrent use.
type meter struct {
	warmUp, total int64
	count         atomic.Int64
	began, ended  atomic.Int64 // nanoseconds since epoch
	epoch         time.Time
	all           chan struct{} // closed when all messages are done
}

func newMeter(warmUp, messages int) *meter {
	return &meter{warmUp: int64(warmUp), total: int64(warmUp + messages), epoch: time.Now(), all: make(chan struct{})}
}

// done counts a message.
func (m *meter) done() {
	switch m.count.Add(1) {
	case m.warmUp:
		m.began.Store(int64(time.Since(m.epoch)))
	case m.total:
		m.ended.Store(int64(time.Since(m.epoch)))
		close(m.all)
	}
}

// wait returns when all messages are done.
func (m *meter) wait(ctx context.Context) error {
	select {
	case <-m.all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d of %d messages are done: %w", m.count.Load(), m.total, context.Cause(ctx))
	}
}

func (m *meter) elapsed() time.Duration { return time.Duration(m.ended.Load() - m.began.Load()) }
