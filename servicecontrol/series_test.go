package servicecontrol

import (
	"sync"
	"testing"
	"time"
)

// The number of values that cannot be sent is bounded, and the oldest values are dropped.
func TestUnsentValuesAreBounded(t *testing.T) {
	var s series
	const n = 10 * maxWaiting
	for i := range n {
		s.add(time.Unix(int64(1_800_000_000+i), 0), int64(i), "a")
		if i%5000 == 0 {
			s.putBack(s.take())
		}
	}
	all := decodeAll(t, s.take())
	if len(all) > maxWaiting || len(all) < maxWaiting-maxBatch || cap(s.values) > 4*maxWaiting {
		t.Errorf("%d values wait, at most %d may", len(all), maxWaiting)
	}
	if first, last := all[0].Value, all[len(all)-1].Value; first != n-int64(len(all)) || last != n-1 {
		t.Errorf("the values from %d to %d were kept, not the newest", first, last)
	}
	if lost := s.lost(); lost != n-len(all) || s.lost() != 0 {
		t.Errorf("%d values were counted as lost, want %d", lost, n-len(all))
	}
}

func TestASeriesAsksToBeSentOnceAMessageIsFull(t *testing.T) {
	full := make(chan struct{}, 1)
	s := newSeries("Retries", full)
	for i := range maxBatch {
		if len(full) > 0 {
			t.Fatalf("asked after %d values", i)
		}
		s.add(time.Now(), 1, "")
	}
	if len(full) == 0 {
		t.Error("not asked")
	}
	s.add(time.Now(), 1, "") // does not wait for a reader
}

func TestValuesOfManyGoroutinesAreEachTakenOnce(t *testing.T) {
	var s series
	var wg sync.WaitGroup
	const goroutines, each = 8, 3000
	for range goroutines {
		wg.Go(func() {
			for i := range each {
				s.add(time.Now(), int64(i), "a")
			}
		})
	}
	got, done := 0, make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		default:
		}
		for i, b := range s.take() {
			if i > 0 {
				s.putBack([][]value{b})
				continue
			}
			got += len(b)
		}
	}
	got += len(decodeAll(t, s.take()))
	if got != goroutines*each {
		t.Errorf("%d values, want %d", got, goroutines*each)
	}
}
