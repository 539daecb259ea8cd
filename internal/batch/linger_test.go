package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// recorder records batches with the time of their flush, which lasts a second.
type recorder struct {
	began time.Time
	mu    sync.Mutex // guards log
	log   []string
}

func (r *recorder) flush(items []int, _ []error) {
	r.mu.Lock()
	r.log = append(r.log, fmt.Sprint(time.Since(r.began).String(), items))
	r.mu.Unlock()
	time.Sleep(time.Second)
}

func (r *recorder) want(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.log, want) {
		t.Errorf("batches %q, want %q", r.log, want)
	}
}

func lingering(t *testing.T, cfg Config[int]) (*Batcher[int], *recorder) {
	r := &recorder{began: time.Now()}
	cfg.Flush, cfg.Linger = r.flush, 100*time.Millisecond
	if cfg.Flushers == 0 {
		cfg.Flushers = 8
	}
	b := New(cfg)
	t.Cleanup(b.Close)
	return b, r
}

func TestABatchLingersUnlessNoMoreItemsAreExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, r := lingering(t, Config[int]{MaxItems: 10})
		first := b.Submit(1)
		synctest.Wait()
		second := b.Submit(2)
		b.Submit(3)
		<-first.Done()
		<-second.Done()
		synctest.Wait()
		b.Submit(4)
		time.Sleep(2 * time.Second)
		for n := 5; n < 8; n++ {
			_ = b.Do(t.Context(), n)
		}
		r.want(t, "0s[1]", "100ms[2 3]", "1.2s[4]", "3.1s[5]", "4.1s[6]", "5.1s[7]")
	})
}

func TestAFullBatchIsFlushedAtOnce(t *testing.T) {
	for name, cfg := range map[string]Config[int]{
		"items":  {MaxItems: 2},
		"weight": {MaxItems: 10, Weight: func(n int) int { return n }, MaxWeight: 27},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg.NoneExpected = func() bool { return false }
				b, r := lingering(t, cfg)
				for n := 11; n < 16; n++ {
					b.Submit(n)
					synctest.Wait()
				}
				time.Sleep(time.Second)
				r.want(t, "0s[11 12]", "0s[13 14]", "100ms[15]")
			})
		})
	}
}

func TestAnItemOverTheWeightIsFlushedByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, r := lingering(t, Config[int]{MaxItems: 10, Weight: func(n int) int { return n }, MaxWeight: 5})
		if errs := b.DoAll(t.Context(), []int{7, 2, 2, 2, 9}); !slices.Equal(errs, make([]error, 5)) {
			t.Errorf("DoAll = %v", errs)
		}
		r.want(t, "0s[7]", "1s[2 2]", "2.1s[2]", "3.1s[9]")
	})
}

func TestNoneExpectedEndsTheLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := 2
		b, r := lingering(t, Config[int]{MaxItems: 10, NoneExpected: func() bool { return open == 0 }})
		b.Submit(1)
		time.Sleep(10 * time.Millisecond)
		open = 0
		b.Submit(2)
		synctest.Wait()
		r.want(t, "10ms[1 2]")
	})
}

func TestAWithdrawnItemIsNotFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, r := lingering(t, Config[int]{MaxItems: 10, NoneExpected: func() bool { return false }})
		first, second := b.Submit(1), b.Submit(2)
		if !b.Withdraw(first) {
			t.Error("Withdraw of a waiting item = false")
		}
		time.Sleep(200 * time.Millisecond)
		if b.Withdraw(second) {
			t.Error("Withdraw of an item that is being flushed = true")
		}
		b.Withdraw(b.Submit(3))
		time.Sleep(time.Second)
		b.Submit(4)
		time.Sleep(time.Second)
		r.want(t, "100ms[2]", "1.3s[4]")
	})
}

func TestCloseEndsTheLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, r := lingering(t, Config[int]{MaxItems: 10, NoneExpected: func() bool { return false }})
		p := b.Submit(1)
		b.Close()
		if err := <-p.Done(); err != nil {
			t.Errorf("result = %v", err)
		}
		r.want(t, "0s[1]")
	})
}

func TestItemsFailWhenNoFlusherCanStart(t *testing.T) {
	b := New(Config[int]{Flushers: 1, MaxItems: 2, Start: func(func()) bool { return false }})
	for _, err := range b.DoAll(context.Background(), []int{1, 2, 3}) {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("result = %v, want ErrClosed", err)
		}
	}
}
