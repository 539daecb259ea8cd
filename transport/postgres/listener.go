package postgres

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// listenTimeout bounds what a listener asks of the server.
const listenTimeout = 10 * time.Second

// A listener hears notifications for several stores on one connection, which is open as long as one of them listens.
type listener struct {
	config  *pgxpool.Config // for one connection
	life    context.Context //nolint:containedctx // ends with Close
	end     context.CancelFunc
	session sync.WaitGroup // the goroutine that has the connection

	mu        sync.Mutex // guards what follows
	hearers   []*hearer
	open      bool               // the goroutine runs
	interrupt context.CancelFunc // ends its wait, so that it looks at hearers again; nil before the first wait
}

// A hearer is a store that listens.
type hearer struct {
	channel string
	ready   func()               // called once, when notifications arrive from now on
	heard   func(payload string) // called with each of the channel
	told    bool                 // ready was called
	broken  chan error           // has room for why no more arrive
}

func newListener(config *pgxpool.Config) *listener {
	l := &listener{config: config}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// listen hears notifications for h until ctx ends or the connection breaks, and returns why.
func (l *listener) listen(ctx context.Context, h *hearer) error {
	h.broken = make(chan error, 1)
	l.mu.Lock()
	l.hearers = append(l.hearers, h)
	if l.open {
		l.look()
	} else {
		l.open = true
		l.session.Go(l.run)
	}
	l.mu.Unlock()
	select {
	case err := <-h.broken:
		return fmt.Errorf("postgres: listen: %w", err)
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hearers = slices.DeleteFunc(l.hearers, func(other *hearer) bool { return other == h })
	l.look()
	return context.Cause(ctx)
}

// look has the session look at hearers. Called with mu held.
func (l *listener) look() {
	if l.interrupt != nil {
		l.interrupt()
	}
}

// run has the connection until no hearer is left, or it breaks.
func (l *listener) run() {
	conn, err := l.connect()
	if err == nil {
		defer closeSoon(conn)
		err = l.hear(conn)
	}
	if err != nil {
		l.fail(err)
	}
}

func (l *listener) connect() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(l.life, listenTimeout)
	defer cancel()
	config := l.config.ConnConfig.Copy()
	if l.config.BeforeConnect != nil {
		if err := l.config.BeforeConnect(ctx, config); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config)
}

// hear passes notifications on. It returns nil when no hearer is left.
func (l *listener) hear(conn *pgx.Conn) error {
	listening := map[string]bool{}
	for {
		waiting, hearers := l.next()
		if len(hearers) == 0 {
			return nil
		}
		for _, h := range hearers {
			if err := l.begin(conn, h, listening); err != nil {
				return err
			}
		}
		n, err := conn.WaitForNotification(waiting)
		switch {
		case err == nil:
			for _, h := range hearers {
				if h.channel == n.Channel {
					h.heard(n.Payload)
				}
			}
		case waiting.Err() == nil || l.life.Err() != nil || conn.IsClosed():
			return err
		}
	}
}

// next returns the hearers, and the context of the next wait. Without hearers the session is over.
func (l *listener) next() (context.Context, []*hearer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look() // the last wait is over
	l.interrupt = nil
	if len(l.hearers) == 0 {
		l.open = false
		return nil, nil
	}
	waiting, interrupt := context.WithCancel(l.life)
	l.interrupt = interrupt
	return waiting, slices.Clone(l.hearers)
}

// begin listens to the channel of h, if need be, and tells h.
func (l *listener) begin(conn *pgx.Conn, h *hearer, listening map[string]bool) error {
	if h.told {
		return nil
	}
	if !listening[h.channel] {
		ctx, cancel := context.WithTimeout(l.life, listenTimeout)
		defer cancel()
		if _, err := conn.Exec(ctx, "LISTEN "+quote(h.channel)); err != nil {
			return err
		}
		listening[h.channel] = true
	}
	h.told = true
	h.ready()
	return nil
}

// fail ends the session, and tells all hearers why.
func (l *listener) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look()
	l.open, l.interrupt = false, nil
	for _, h := range l.hearers {
		h.broken <- err
	}
	l.hearers = nil
}

// Close ends the connection. No store listens any more.
func (l *listener) Close() {
	l.end()
	l.session.Wait()
}

// closeSoon closes conn also when the context of its owner has ended.
func closeSoon(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
