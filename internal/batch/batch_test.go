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

func TestEachWaiterGetsItsOwnResult(t *testing.T) {
	odd := errors.New("odd")
	b := New(Config[int]{Flushers: 3, MaxItems: 7, Flush: func(items []int, errs []error) {
		for i, n := range items {
			if n%2 == 1 {
				errs[i] = fmt.Errorf("%d: %w", n, odd)
			}
		}
	}})
	defer b.Close()
	var wg sync.WaitGroup
	for n := range 500 {
		wg.Go(func() {
			err := b.Do(t.Context(), n)
			if want := fmt.Sprintf("%d: odd", n); n%2 == 1 && (err == nil || err.Error() != want) {
				t.Errorf("Do(%d) = %v, want %q", n, err, want)
			}
			if n%2 == 0 && err != nil {
				t.Errorf("Do(%d) = %v, want nil", n, err)
			}
		})
	}
	wg.Wait()
}

func TestItemsAccumulateOnlyWhileAllFlushersAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var batches [][]int
		b := New(Config[int]{Flushers: 1, MaxItems: 3, Flush: func(items []int, errs []error) {
			mu.Lock()
			batches = append(batches, slices.Clone(items))
			mu.Unlock()
			time.Sleep(time.Second)
		}})
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() { _ = b.Do(t.Context(), n) })
			synctest.Wait()
		}
		wg.Wait()
		b.Close()
		got, want := fmt.Sprint(batches), "[[0] [1 2 3] [4 5 6] [7]]"
		if got != want {
			t.Errorf("batches = %s, want %s", got, want)
		}
	})
}

func TestNoMoreFlushersThanAllowedRunAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		b := New(Config[int]{Flushers: 2, MaxItems: 1, Flush: func([]int, []error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
		}})
		for n := range 6 {
			go func() { _ = b.Do(t.Context(), n) }()
		}
		synctest.Wait()
		b.Close()
		if most != 2 {
			t.Errorf("%d flushes ran at once, want 2", most)
		}
	})
}

func TestAContextThatEndsBeforeTheFlushWithdrawsTheItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var flushed []string
		b := New(Config[string]{Flushers: 1, MaxItems: 10, Flush: func(items []string, errs []error) {
			flushed = append(flushed, items...)
			time.Sleep(time.Second)
		}})
		go func() { _ = b.Do(t.Context(), "first") }()
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("no longer wanted")
		result := make(chan error)
		go func() { result <- b.Do(ctx, "second") }()
		go func() { result <- b.Do(t.Context(), "third") }()
		synctest.Wait()
		cancel(cause)
		if err := <-result; !errors.Is(err, cause) {
			t.Errorf("Do = %v, want %v", err, cause)
		}
		if err := <-result; err != nil {
			t.Errorf("the neighbour's Do = %v, want nil", err)
		}
		b.Close()
		if want := []string{"first", "third"}; !slices.Equal(flushed, want) {
			t.Errorf("flushed %q, want %q", flushed, want)
		}
	})
}

func TestAContextThatEndsDuringTheFlushAbandonsTheItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config[string]{Flushers: 1, MaxItems: 10, Flush: func([]string, []error) { time.Sleep(time.Second) }})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() { result <- b.Do(ctx, "first") }()
		synctest.Wait()
		cancel()
		if err := <-result; !errors.Is(err, ErrAbandoned) {
			t.Errorf("Do = %v, want ErrAbandoned", err)
		}
		if err := b.Do(t.Context(), "second"); err != nil {
			t.Errorf("Do afterwards = %v, want nil", err)
		}
		b.Close()
	})
}

func TestCloseFlushesWaitingItemsAndRefusesNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config[int]{Flushers: 1, MaxItems: 1, Flush: func([]int, []error) { time.Sleep(time.Second) }})
		results := make(chan error, 3)
		for n := range 3 {
			go func() { results <- b.Do(t.Context(), n) }()
		}
		synctest.Wait()
		b.Close()
		b.Close()
		for range 3 {
			if err := <-results; err != nil {
				t.Errorf("Do before Close = %v, want nil", err)
			}
		}
		if err := b.Do(t.Context(), 4); !errors.Is(err, ErrClosed) {
			t.Errorf("Do after Close = %v, want ErrClosed", err)
		}
	})
}

func BenchmarkDo(b *testing.B) {
	for _, workers := range []int{1, 32} {
		b.Run(fmt.Sprintf("c%d", workers), func(b *testing.B) {
			bt := New(Config[int]{Flushers: 2, MaxItems: 200, Flush: func([]int, []error) {}})
			defer bt.Close()
			b.ReportAllocs()
			b.SetParallelism(workers)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_ = bt.Do(b.Context(), 1)
				}
			})
		})
	}
}
