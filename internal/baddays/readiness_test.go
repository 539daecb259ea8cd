package baddays_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// A trouble is a fault of a broker, and what Health says about the fault. The troubles are the rows
// of "What Health says" in docs/bad-days.md.
type trouble struct {
	broker, name string
	// make returns the transport of the endpoint, and the fault.
	make func(t *testing.T, p *patient) fault
	on   func(p *patient, n network) fault // the same, of a network
	// reason is a part of a reason for which the endpoint is not ready during the fault. If reason
	// is empty, the endpoint handles messages during the fault, whatever Health says.
	reason string
}

// A fault begins and ends. A fault without an end is over when begin has returned.
type fault struct {
	broker     transport.Transport // of the endpoint
	sound      transport.Transport // of others, whom the fault does not hit; nil is broker
	begin, end func()
}

// soon bounds the time in which Health must change. docs/bad-days.md has the times of a machine
// that is not busy.
const soon = 2 * time.Minute

// TestChaosReadiness compares Health and the log of an idle endpoint with each trouble: when the
// fault begins, while the fault lasts, and after the end of the fault. Afterwards the endpoint
// handles a message. The short form runs several troubles at once.
func TestChaosReadiness(t *testing.T) {
	full := brokertest.Fault(t)
	for _, trouble := range troubles() {
		t.Run(trouble.broker+"/"+trouble.name, func(t *testing.T) {
			if !full {
				t.Parallel()
			}
			trouble.run(t)
		})
	}
}

func (tr trouble) run(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	log := &records{}
	p := &patient{log: log}
	p.orderDay = &orderDay{t: t, ctx: ctx, attempts: map[int]int{}, handled: map[int]int{}}
	p.queue, p.errors = brokertest.Name(t, "orders"), brokertest.Name(t, "error")
	f := tr.make(t, p)
	p.broker = f.broker
	if p.sound = f.sound; p.sound == nil {
		p.sound = f.broker
	}
	p.run(func(int) error { return nil }, func(cfg *endpoint.Config) {
		cfg.Logger = slog.New(log)
		for _, change := range p.changes {
			change(cfg)
		}
	})
	p.handle(1)

	began := time.Now()
	f.begin()
	switch {
	case tr.reason != "":
		h := p.awaitHealth(tr.reason, false)
		t.Logf("not ready after %v: %q", time.Since(began).Round(10*time.Millisecond), h.Reasons)
		p.await("a line of the log about the fault", func() bool { return log.since(began, slog.LevelWarn) > 0 })
	case f.end != nil:
		p.handle(2)
	}
	if lines := log.since(began, slog.LevelInfo); lines > 60 {
		t.Errorf("the log has %d lines about one fault of %v", lines, time.Since(began).Round(time.Second))
	}
	if f.end != nil {
		f.end()
	}
	ended := time.Now()
	p.awaitHealth("", true)
	t.Logf("ready %v after the end", time.Since(ended).Round(10*time.Millisecond))
	p.handle(3)
	p.awaitHealth("", true) // a failure that came late, of another queue, has ended
}

// A patient is the endpoint of a trouble.
type patient struct {
	*orderDay

	sound   transport.Transport
	log     *records
	changes []func(*endpoint.Config)
}

// awaitHealth waits until the endpoint is ready or, if ready is false, names reason.
func (p *patient) awaitHealth(reason string, ready bool) endpoint.Health {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, soon)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		h := p.endpoint.Health()
		if !h.Live {
			p.t.Fatalf("the endpoint is not live: %q", h.Reasons)
		}
		if h.Ready == ready && (ready || strings.Contains(strings.Join(h.Reasons, "\n"), reason)) {
			return h
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			p.t.Fatalf("after %v: ready is %v, want %v because of %q; reasons %q, warnings %q\nlog:\n%s",
				soon, h.Ready, ready, reason, h.Reasons, h.Warnings, p.log)
		}
	}
}

// admin calls f with a connection that the fault does not hit.
func (p *patient) admin(f func(transport.Conn) error) {
	p.t.Helper()
	conn, err := p.sound.Open(p.ctx, transport.Env{})
	if err == nil {
		err = errors.Join(f(conn), conn.Close())
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// handle sends message n to the endpoint from elsewhere, and waits until the endpoint has handled
// the message.
func (p *patient) handle(n int) {
	p.t.Helper()
	must(p.t, p.sendFromElsewhere(n, 0))
	p.await("a message to be handled", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.handled[n] > 0
	})
}

// sendFromElsewhere sends over a connection that the fault does not hit.
func (p *patient) sendFromElsewhere(n int, after time.Duration) error {
	conn, err := p.sound.Open(p.ctx, transport.Env{})
	if err != nil {
		return err
	}
	message := &transport.Message{ID: strconv.Itoa(n), Body: []byte(`{"N":` + strconv.Itoa(n) + `}`), Headers: header.New(
		header.Field{Name: header.EnclosedMessageTypes, Value: "BadDay.Order"},
		header.Field{Name: header.ContentType, Value: "application/json"},
	)}
	_, err = conn.Dispatch(p.ctx, []transport.Operation{{Queue: p.queue, Message: message, After: after}})
	return errors.Join(err, conn.Close())
}

// records is a slog.Handler that keeps all lines.
type records struct {
	mu    sync.Mutex
	lines []slog.Record
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }
func (r *records) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *records) WithGroup(string) slog.Handler            { return r }

func (r *records) Handle(_ context.Context, line slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	return nil
}

// since returns the number of lines of a level or above since a time.
func (r *records) since(began time.Time, level slog.Level) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.lines {
		if line.Level >= level && !line.Time.Before(began) {
			n++
		}
	}
	return n
}

// String returns the lines, at most 100.
func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var text strings.Builder
	for _, line := range r.lines[max(0, len(r.lines)-100):] {
		text.WriteString(line.Time.Format("05.000 ") + line.Level.String() + " " + line.Message)
		line.Attrs(func(a slog.Attr) bool {
			text.WriteString(" " + a.String())
			return true
		})
		text.WriteString("\n")
	}
	return text.String()
}
