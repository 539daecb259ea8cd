package bench

import (
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/pipeline"
)

// timeline has the start and the duration of each message. A message is identified by the number in
// its id, so that measuring allocates nothing.
type timeline struct {
	begun []atomic.Int64 // since zero, in nanoseconds
	took  []atomic.Int64
	ended []atomic.Bool // completed

	zero    time.Time
	left    atomic.Int64 // messages that are not completed
	again   atomic.Int64 // completions of completed messages
	headers atomic.Int64 // of a message sent
	done    chan struct{}
}

func newTimeline(n int) *timeline {
	t := &timeline{
		begun: make([]atomic.Int64, n), took: make([]atomic.Int64, n), ended: make([]atomic.Bool, n),
		zero: time.Now(), done: make(chan struct{}),
	}
	t.left.Store(int64(n))
	return t
}

const (
	idPrefix = "0199a6f0-4c2e-7b31-9d3e-"
	idDigits = 12
)

// messageID returns the id of the i-th message, as long as a UUID.
func messageID(i int) string { return fmt.Sprintf("%s%0*d", idPrefix, idDigits, i) }

// index returns the number of a message, or -1 for a foreign one.
func (t *timeline) index(id string) int {
	if len(id) != len(idPrefix)+idDigits {
		return -1
	}
	i, err := strconv.Atoi(id[len(idPrefix):])
	if err != nil || i < 0 || i >= len(t.begun) {
		return -1
	}
	return i
}

func (t *timeline) now() int64 { return int64(time.Since(t.zero)) }

// begin notes that message i is sent or received.
func (t *timeline) begin(i int) { t.begun[i].Store(t.now()) }

// stop notes the duration of message i.
func (t *timeline) stop(i int) { t.took[i].Store(t.now() - t.begun[i].Load()) }

// complete counts message i as completed.
func (t *timeline) complete(i int) {
	if t.ended[i].Swap(true) {
		t.again.Add(1)
		return
	}
	if t.left.Add(-1) == 0 {
		close(t.done)
	}
}

// sent notes the number of headers of the messages of d, or of the received one when none is sent.
func (t *timeline) sent(d *pipeline.Dispatch) {
	switch {
	case len(d.Operations) > 0:
		t.headers.Store(int64(d.Operations[0].Message.Headers.Len()))
	case d.Incoming != nil:
		t.headers.Store(int64(d.Incoming.Message.Headers.Len()))
	}
}

// percentiles returns durations in milliseconds.
func (t *timeline) percentiles() (p50, p95, p99 float64) {
	all := make([]int64, len(t.took))
	for i := range t.took {
		all[i] = t.took[i].Load()
	}
	slices.Sort(all)
	at := func(p float64) float64 {
		return float64(all[min(len(all)-1, int(p*float64(len(all))))]) / float64(time.Millisecond)
	}
	return at(0.50), at(0.95), at(0.99)
}
