package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// listenTimeout bounds each request of a listener.
const listenTimeout = 10 * time.Second

// A listener receives notifications for several stores on one connection, which is open while one
// of them listens.
type listener struct {
	config  *pgxpool.Config // for one connection
	life    context.Context //nolint:containedctx // ends with Close
	end     context.CancelFunc
	session sync.WaitGroup // the goroutine that has the connection

	mu        sync.Mutex // guards the rest
	hearers   []*hearer
	open      bool               // the goroutine runs
	interrupt context.CancelFunc // ends its wait, so that it reads hearers again; nil before the first wait
}

// A hearer is a store that listens.
type hearer struct {
	channel string
	ready   func()               // called once, when notifications begin to arrive
	heard   func(payload string) // called with each payload of the channel
	told    bool                 // ready was called
	broken  chan error           // buffered; the error that ended the connection
}

// listen receives notifications for h until ctx ends or the connection breaks, and returns the
// cause.
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

// look makes the session read hearers again. mu is held.
func (l *listener) look() {
	if l.interrupt != nil {
		l.interrupt()
	}
}

// run keeps the connection until no hearer is left, or it breaks, of which it informs all hearers.
func (l *listener) run() {
	conn, err := l.connect(l.life, nil)
	if err == nil {
		defer closeSoon(conn)
		err = l.hear(conn)
	}
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look()
	l.open, l.interrupt = false, nil
	for _, h := range l.hearers {
		h.broken <- err
	}
	l.hearers = nil
}

// connect opens a session. notice, which may be nil, is called with each notice of the server.
func (l *listener) connect(ctx context.Context, notice pgconn.NoticeHandler) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	config := l.config.ConnConfig.Copy()
	if notice != nil {
		config.OnNotice = notice
	}
	if l.config.BeforeConnect != nil {
		if err := l.config.BeforeConnect(ctx, config); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config)
}

// hear passes notifications to hearers. It returns nil when no hearer is left.
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

// next returns the hearers, and the context of the next wait. Without hearers the session ends.
func (l *listener) next() (context.Context, []*hearer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look() // the last wait is over
	l.interrupt = nil
	if len(l.hearers) == 0 {
		l.open = false
		return nil, nil
	}
	var waiting context.Context
	waiting, l.interrupt = context.WithCancel(l.life)
	return waiting, slices.Clone(l.hearers)
}

// begin listens to the channel of h, unless the connection does already, and calls ready.
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

// Close ends the connection, when no store listens any more.
func (l *listener) Close() {
	l.end()
	l.session.Wait()
}

// closeSoon closes conn within a second, whatever the context of its owner.
func closeSoon(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// notify sends the sender $1 and a queue of $3 as a notification on each channel of $2.
const notify = `SELECT pg_notify(c, $1 || ' ' || q) FROM unnest($2::text[], $3::text[]) AS r(c, q)`

// channelOf returns the channel on which receivers of a schema's queues listen. Two schemas with
// long names may share one, and wake each other's receivers without need.
func channelOf(schema string) string {
	return truncated("holdfast."+schema, maxName)
}

// notifier is the part of a store that notifies receivers of rows.
type notifier struct {
	*db
	self    string  // the prefix of the store's own notifications
	commits commits // of callers' transactions
}

// heardOf returns the channel of each of queues, and its name in notifications.
func (s *schema) heardOf(queues []string) (channels, names []string) {
	for _, q := range queues {
		schema, plain := s.split(q)
		channels, names = append(channels, channelOf(schema)), append(names, plain)
	}
	return channels, names
}

// Notify implements [tablequeue.Waker].
func (n *notifier) Notify(ctx context.Context, queues []string) error {
	channels, names := n.heardOf(queues)
	_, err := n.leases.Exec(ctx, notify, n.self, channels, names)
	return failure(err, "notify")
}

// Listen implements [tablequeue.Waker]. Without a listener it waits for the end of ctx.
func (n *notifier) Listen(ctx context.Context, ready func(), wake func(queue string)) error {
	n.commits.wakesBy(wake)
	if n.listener == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return n.listener.listen(ctx, &hearer{
		channel: channelOf(n.Schema),
		ready:   ready,
		heard: func(payload string) {
			if from, queue, ok := strings.Cut(payload, " "); ok && from != n.self {
				wake(n.shortName(n.Schema, queue))
			}
		},
	})
}
