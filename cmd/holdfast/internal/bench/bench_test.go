package bench

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

func TestBodiesAreAsLargeAsLinesAllow(t *testing.T) {
	for _, size := range []int{200, 1024, 200_000} {
		body, err := orderBody(size)
		if err != nil {
			t.Fatal(err)
		}
		var o order
		if err := json.Unmarshal(body, &o); err != nil || len(o.Lines) == 0 {
			t.Errorf("a body of %d bytes: %v", size, err)
		}
		const line = 45 // at most
		if len(body) > size || len(body) < size-line {
			t.Errorf("a body of %d bytes has %d", size, len(body))
		}
	}
	if _, err := orderBody(100); err == nil {
		t.Error("a body that no order fits into is no error")
	}
}

func TestTimelineCountsEachMessageOnce(t *testing.T) {
	line := newTimeline(2)
	for _, i := range []int{0, 0, 1} {
		line.complete(i)
	}
	select {
	case <-line.done:
	default:
		t.Error("two completed messages of two are not all")
	}
	if n := line.again.Load(); n != 1 {
		t.Errorf("%d completions too many, want 1", n)
	}
	for id, want := range map[string]int{messageID(1): 1, messageID(2): -1, "0199a6f0": -1, messageID(0)[:35] + "x": -1} {
		if got := line.index(id); got != want {
			t.Errorf("message %q has number %d, want %d", id, got, want)
		}
	}
}

// What endpoints write by themselves is known by number: it must not be more than they write.
func TestHeadersAreThoseOfAnEndpoint(t *testing.T) {
	for work, want := range map[Work]int{Loop: headersInside, Receive: headersInside, Send: headersOutside} {
		opts := Options{
			Transport: &inmemory.Transport{}, Work: work, Messages: 10,
			Size: 200, Concurrency: 2, Log: slog.New(slog.DiscardHandler),
		}
		r, err := Run(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		if r.Headers != want {
			t.Errorf("%s: messages have %d headers, want %d", work, r.Headers, want)
		}
	}
}

func TestInterruptedRunRemovesItsQueues(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.db")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	file := &sqlite.Transport{Path: path}
	_, err := Run(ctx, Options{
		Transport: file, Work: Atomic, Messages: 1000, Rate: 1,
		Size: 200, Concurrency: 2, Log: slog.New(slog.DiscardHandler),
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it ended with %v, want %v", err, context.DeadlineExceeded)
	}
	conn, err := file.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	left, err := conn.(transport.Inspector).Inspect(t.Context())
	if err != nil || len(left) > 0 {
		t.Errorf("it left %+v (%v)", left, err)
	}
}
