package delayeddelivery

import (
	"container/list"
	"crypto/sha256"
	"encoding/base64"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Hops delays messages for longer than the broker does, by a queue in which each waits for a while and from
// which it is sent there again, or to its destination once the broker can keep what is left of its
// delay. The queue refuses the second of two sends with one id ([Leg.ID]) for some minutes, so that a message
// that is sent on and, after a crash, once more, goes on once.
//
//	40 min   hop 15 min, hop 15 min, destination in 10 min
//
// Its methods may be called by many goroutines. The zero value delays nothing.
type Hops struct {
	// Longest is the longest delay that the broker keeps by itself. A message waits no longer than that in the queue
	// of hops either.
	Longest time.Duration
	// Step is the resolution of the broker's delays. 0: nothing is delayed.
	Step time.Duration
}

// Next is where a message goes that is due when left is over: into the queue of hops, or with a delay of wait to
// its destination. What is left is rounded up to whole steps, so that nothing comes early; only the longest Duration has to be
// rounded down.
func (h Hops) Next(left time.Duration) (wait time.Duration, hop bool) {
	if left <= 0 || h.Step <= 0 {
		return 0, false
	}
	if rest := left % h.Step; rest > 0 {
		left -= rest
		if left <= math.MaxInt64-h.Step {
			left += h.Step
		}
	}
	return left, left > h.Longest
}

// Leg is one hop of one deferral of a message.
type Leg struct {
	// Message is the message's id.
	Message string
	// Deferral tells this deferral of the message from any other of it. It has no dots.
	Deferral string
	// Hop is 1 for the first.
	Hop int
}

// legPrefix tells ids of legs from others.
const legPrefix = "holdfast."

// ID is what the queue of hops recognises the leg by: the same whenever this leg is sent, and another one for every
// other leg, so that none is taken for an earlier one. It is of ASCII, without spaces, and of at most 128
// characters where the deferral has at most 32.
func (l Leg) ID() string { return l.Group() + "." + strconv.Itoa(l.Hop) }

// Group is what all legs of a deferral have in common.
func (l Leg) Group() string { return legPrefix + short(l.Message) + "." + l.Deferral }

// Next is the leg after this one.
func (l Leg) Next() Leg {
	l.Hop++
	return l
}

// LegOf is the leg that a message came by, from the id that it has in the queue of hops and the time
// at which it was sent there. An id that is no leg's is that of somebody who takes the message's own; such a
// message may have been deferred before by the same id, but not at the same time.
func LegOf(id string, sent time.Time) Leg {
	rest, ours := strings.CutPrefix(id, legPrefix)
	rest, hop, found := cutLast(rest)
	message, deferral, complete := cutLast(rest)
	n, err := strconv.Atoi(hop)
	if !ours || !found || !complete || err != nil || n < 1 {
		return Leg{Message: id, Deferral: strconv.FormatInt(sent.UnixMilli(), 10), Hop: 1}
	}
	return Leg{Message: message, Deferral: deferral, Hop: n}
}

func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// longestPlain is how long a message's id may be to stand in a leg's as it is.
const longestPlain = 64

// short is what stands for a message's id: a digest where it is long or has other characters than ids may have.
func short(id string) string {
	plain := len(id) <= longestPlain
	for i := 0; plain && i < len(id); i++ {
		plain = id[i] > ' ' && id[i] < 0x7f
	}
	if plain {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Memory remembers how far deferrals were sent on, so that a leg that comes again is not: the queue of hops recognises
// that only for some minutes, and a destination never does. It keeps those of the last deferrals, and is lost with
// the process: then a message may arrive twice, as any may. It may be used by many goroutines. The zero value
// remembers nothing.
type Memory struct {
	// Size is how many deferrals are remembered.
	Size int

	mu    sync.Mutex // guards what follows
	known map[string]*list.Element
	order list.List // of *sentOn, the last one to be added first
}

// sentOn is how far a deferral has come.
type sentOn struct {
	group string
	hop   int
}

// Add remembers that a leg has been sent on: the broker has said so.
func (m *Memory) Add(leg Leg) {
	m.mu.Lock()
	defer m.mu.Unlock()
	group := leg.Group()
	if e, ok := m.known[group]; ok {
		if s := e.Value.(*sentOn); s.hop < leg.Hop { //nolint:errcheck // there is nothing else in it
			s.hop = leg.Hop
		}
		m.order.MoveToFront(e)
		return
	}
	if m.Size <= 0 {
		return
	}
	if m.known == nil {
		m.known = make(map[string]*list.Element)
	}
	m.known[group] = m.order.PushFront(&sentOn{group, leg.Hop})
	if len(m.known) > m.Size {
		delete(m.known, m.order.Remove(m.order.Back()).(*sentOn).group) //nolint:errcheck // as above
	}
}

// Has tells whether a leg, or a later one of its deferral, was sent on, as far as is remembered.
func (m *Memory) Has(leg Leg) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.known[leg.Group()]
	return ok && e.Value.(*sentOn).hop >= leg.Hop //nolint:errcheck // as above
}
