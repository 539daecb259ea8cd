package transport_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

type pool struct{ closed atomic.Int32 }

func (p *pool) Close() error { p.closed.Add(1); return nil }

func TestShareOpensOnceAndClosesWithTheLastUser(t *testing.T) {
	var s transport.Shared
	var opened atomic.Int32
	open := func() (*pool, error) { opened.Add(1); return &pool{}, nil }
	var users sync.WaitGroup
	values, releases := make([]*pool, 20), make([]func() error, 20)
	for i := range values {
		users.Go(func() {
			var err error
			if values[i], releases[i], err = transport.Share(&s, "key", open); err != nil {
				t.Error(err)
			}
		})
	}
	users.Wait()
	if n := opened.Load(); n != 1 {
		t.Fatalf("the value was opened %d times, want once", n)
	}
	for i, release := range releases {
		if n := values[0].closed.Load(); values[i] != values[0] || n != 0 {
			t.Fatalf("user %d of 20 has another value, or one that was closed %d times", i, n)
		}
		for range 2 { // the second call does nothing
			if err := release(); err != nil {
				t.Error(err)
			}
		}
	}
	if n := values[0].closed.Load(); n != 1 {
		t.Errorf("the value was closed %d times, want once", n)
	}
	if v, _, _ := transport.Share(&s, "key", open); v == values[0] {
		t.Error("a value that was closed is used again")
	}
}

func TestShareOpensAnewAfterAFailure(t *testing.T) {
	var s transport.Shared
	refused := errors.New("refused")
	if _, _, err := transport.Share(&s, 1, func() (*pool, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Errorf("got the error %v, want that of open", err)
	}
	if v, _, err := transport.Share(&s, 1, func() (*pool, error) { return &pool{}, nil }); err != nil || v == nil {
		t.Errorf("got %v and the error %v, want a value", v, err)
	}
}

func TestWithoutSharedEachHasItsOwn(t *testing.T) {
	open := func() (*pool, error) { return &pool{}, nil }
	a, release, _ := transport.Share(nil, 1, open)
	b, _, _ := transport.Share(nil, 1, open)
	if err := release(); err != nil || a == b || a.closed.Load() != 1 || b.closed.Load() != 0 {
		t.Errorf("two users without a Shared share a value, or one was not closed; error %v", err)
	}
}
