// Package held keeps account of the failed messages that wait because their error queue accepts no
// messages. The package decides when each message is tried again.
//
// While an error queue refuses, one message is tried after each pause, and the messages take turns:
// the queue may refuse large messages only. After each success two more messages are tried, so that
// the queue is filled quickly when there is room again, and is not flooded when there is little
// room. After a row of successes new failed messages need not wait: otherwise a steady flow of
// failed messages would keep the queue in the room for ever.
package held

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// MaxMessages bounds the messages in a room.
	MaxMessages = 1000
	// MaxBytes bounds their size.
	MaxBytes = 64 << 20

	firstPause = time.Second
	mostPause  = 30 * time.Second
	// maxTries bounds the messages of a queue that are tried at once.
	maxTries = 32
	// recovered is how many messages in a row a queue has accepted when a new failed message need
	// not wait behind the messages in the room.
	recovered = maxTries
)

// Room is the account of an endpoint. The zero value is empty. Its methods are safe for concurrent
// use.
type Room struct {
	mu       sync.Mutex // guards the rest, the queues and the places
	queues   map[string]*queue
	messages int
	bytes    int64
	full     bool // a message has found no place since the last one left
}

// queue is an error queue that does not accept messages.
type queue struct {
	name     string
	since    time.Time
	err      error // the last refusal
	accepted int
	inRow    int // accepted since the last refusal

	places  int
	waiting []*Place // the next to be tried first
	running int      // tries
	credit  int      // tries that may begin now

	refusals int // so far: tries that began before the last one prolong no pause
	pause    time.Duration
	timer    *time.Timer // of the pause before the next try; nil: no pause runs
}

// Place is the place of a message in a room. The owner of the message calls Leave at the end. The
// methods are safe for concurrent use.
type Place struct {
	room  *Room
	queue *queue
	size  int64
	turn  chan struct{} // receives each time the message is to be tried
	began int           // refusals of the queue when the try began
	state state
}

type state int8

const (
	waiting state = iota
	trying
	gone
)

// State is the state of an error queue for which messages wait.
type State struct {
	Queue    string
	Since    time.Time
	Err      error // the last refusal
	Messages int
	Accepted int // messages since that time
}

// Enter returns a place for a message of size bytes that an error queue has refused with err. It
// returns nil if there is no room. begins reports whether the message is the first that waits for
// the queue.
func (r *Room) Enter(name string, size int64, err error) (p *Place, begins bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil {
		if q.err = err; q.inRow >= recovered {
			q.inRow, q.credit = 0, 0
			q.refusals++
		}
	}
	return r.enter(name, size, err)
}

// Follow is Enter for a message that was not sent to the queue, because of a [Room.Refusal].
func (r *Room) Follow(name string, size int64, refusal error) (p *Place, begins bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.enter(name, size, refusal)
}

// enter is called with mu held.
func (r *Room) enter(name string, size int64, err error) (p *Place, begins bool) {
	if r.messages >= MaxMessages || r.bytes+size > MaxBytes {
		r.full = true
		return nil, false
	}
	q := r.queues[name]
	if begins = q == nil; begins {
		q = &queue{name: name, since: time.Now(), err: err}
		if r.queues == nil {
			r.queues = map[string]*queue{}
		}
		r.queues[name] = q
	}
	p = &Place{room: r, queue: q, size: size, turn: make(chan struct{}, 1)}
	r.messages++
	r.bytes += size
	q.places++
	q.waiting = append(q.waiting, p)
	r.advance(q)
	return p, begins
}

// Refusal returns the last refusal of a queue for which messages wait: a new failed message waits
// behind these messages. Refusal returns nil if no message waits for the queue, or if the queue
// accepts messages again.
func (r *Room) Refusal(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil && q.inRow < recovered {
		return q.err
	}
	return nil
}

// Refused records that the queue has refused the message again. The message waits for its next
// turn, behind all other messages.
func (p *Place) Refused(err error) {
	r, q := p.room, p.queue
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.state != trying {
		return
	}
	p.state = waiting
	q.running--
	q.err, q.credit, q.inRow = err, 0, 0
	q.waiting = append(q.waiting, p)
	if p.began == q.refusals {
		q.refusals++
		q.pause = min(2*q.pause, mostPause)
		r.arm(q)
	}
	r.advance(q)
}

// Accepted records that the queue has accepted the message. The place ends. Accepted returns the
// state of the queue if no other message waits, and nil otherwise.
func (p *Place) Accepted() *State {
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	if q := p.queue; p.state == trying {
		q.accepted++
		q.inRow++
		q.pause = 0
		q.credit = min(q.credit+2, maxTries)
	}
	return p.leave()
}

// Leave ends the place of a message that does not wait any longer. Leave returns the state of the
// queue if no other message waits, and nil otherwise. If the place has ended, Leave does nothing
// and returns nil.
func (p *Place) Leave() *State {
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	return p.leave()
}

// leave is Leave. Called with mu held.
func (p *Place) leave() *State {
	r, q := p.room, p.queue
	switch p.state {
	case gone:
		return nil
	case trying:
		q.running--
	case waiting:
		q.waiting = slices.DeleteFunc(q.waiting, func(other *Place) bool { return other == p })
	}
	p.state = gone
	r.messages--
	r.bytes -= p.size
	r.full = false
	if q.places--; q.places > 0 {
		r.advance(q)
		return nil
	}
	if q.timer != nil {
		q.timer.Stop()
	}
	delete(r.queues, q.name)
	s := q.state()
	return &s
}

// advance starts tries, or the pause before the next one. Called with mu held.
func (r *Room) advance(q *queue) {
	for q.credit > 0 && q.running < maxTries && len(q.waiting) > 0 {
		p := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.credit--
		q.running++
		p.state, p.began = trying, q.refusals
		p.turn <- struct{}{} // there is room
	}
	if q.running == 0 && len(q.waiting) > 0 {
		r.arm(q)
	}
}

// arm starts the pause before the next try, unless the pause has begun. Called with mu held.
func (r *Room) arm(q *queue) {
	if q.timer != nil {
		return
	}
	q.pause = max(q.pause, firstPause)
	q.timer = time.AfterFunc(q.pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		q.timer = nil
		if q.running == 0 { // otherwise the end of a try decides
			q.credit = max(q.credit, 1)
			r.advance(q)
		}
	})
}

func (q *queue) state() State {
	return State{Queue: q.name, Since: q.since, Err: q.err, Messages: q.places, Accepted: q.accepted}
}

// States returns the states of the queues for which messages wait, sorted by name, and reports
// whether the room is full: then further messages find no place.
func (r *Room) States() (all []State, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.queues {
		all = append(all, q.state())
	}
	slices.SortFunc(all, func(x, y State) int { return strings.Compare(x.Queue, y.Queue) })
	return all, r.full
}

const (
	// exitsAtOnce bounds the messages that leave a room for another queue at once.
	exitsAtOnce = 16
	// silentFor is how long no further message is sent to a queue that did not answer.
	silentFor = time.Minute
)

// Exits are the queues to which messages leave a room. The zero value is ready. The methods are
// safe for concurrent use.
type Exits struct {
	begin  sync.Once
	tokens chan struct{}

	mu     sync.Mutex // guards silent
	silent map[string]time.Time
}

// Enter waits for the turn of a message to leave. The caller calls done when the message has left.
func (e *Exits) Enter() (done func()) {
	e.begin.Do(func() { e.tokens = make(chan struct{}, exitsAtOnce) })
	e.tokens <- struct{}{}
	return func() { <-e.tokens }
}

// NoAnswer records that a queue did not answer.
func (e *Exits) NoAnswer(queue string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.silent == nil {
		e.silent = map[string]time.Time{}
	}
	e.silent[queue] = time.Now()
}

// Answers reports whether a message may be sent to the queue: a stop does not wait once for each
// message.
func (e *Exits) Answers(queue string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, silent := e.silent[queue]
	return !silent || time.Since(at) > silentFor
}

// look is the time between two looks at the delivery of a held message.
const look = time.Second

// Message is a failed message that waits for an error queue.
type Message interface {
	// TryAgain moves the message to the error queue, once more.
	TryAgain(ctx context.Context) error
	// Leave replaces the message by a copy outside of the process.
	Leave(ctx context.Context)
	// EndsSoon reports whether the broker is about to deliver the message again.
	EndsSoon() bool
	// IsLost reports whether the driver knows that the delivery is lost.
	IsLost() bool
	// LostLease reports whether TryAgain found that the delivery is lost.
	LostLease() bool
	// Drop ends a message whose delivery is lost.
	Drop()
}

// Hold waits until the error queue accepts the message. The message leaves when stopping is closed,
// or ctx or the delivery ends. Hold returns the state of the queue if no other message waits, and
// nil otherwise.
func (p *Place) Hold(ctx context.Context, m Message, stopping <-chan struct{}) *State {
	defer p.Leave() // if the message panics
	looks := time.NewTicker(look)
	defer looks.Stop()
	for {
		lost := false
		select {
		case <-p.turn:
			if err := m.TryAgain(ctx); err != nil {
				p.Refused(err)
				continue
			}
			return p.moved(m)
		case <-looks.C:
			if lost = m.IsLost(); !lost && !m.EndsSoon() {
				continue
			}
		case <-stopping:
		case <-ctx.Done():
			lost = errors.Is(context.Cause(ctx), transport.ErrLeaseLost)
		}
		return p.end(ctx, m, lost)
	}
}

// moved ends the place of a message that was moved, unless the delivery was lost.
func (p *Place) moved(m Message) *State {
	if m.LostLease() {
		return p.Leave()
	}
	return p.Accepted()
}

// end ends the place of a message that was not moved.
func (p *Place) end(ctx context.Context, m Message, lost bool) *State {
	if lost {
		m.Drop()
	} else {
		m.Leave(ctx)
	}
	return p.Leave()
}
