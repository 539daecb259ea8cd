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

// DelayChain delays messages for longer than the broker does, with a delay queue: a message waits
// there, and is then sent to the delay queue again, or to its destination once the broker can keep
// the rest of its delay. The delay queue refuses the second of two sends with one id ([Hop.ID]) for
// some minutes, so that a message that is sent on twice, because of a crash, continues once.
//
//	40 min   hop 15 min, hop 15 min, destination in 10 min
//
// It is safe for concurrent use. The zero value delays nothing.
type DelayChain struct {
	// Longest is the longest delay that the broker keeps by itself, and the longest wait in the
	// delay queue.
	Longest time.Duration
	// Step is the resolution of the broker's delays. 0: nothing is delayed.
	Step time.Duration
}

// Next returns the next stop of a message that is due after left: the delay queue, or its
// destination with a delay of wait. It rounds left up to whole steps, so that no message is early;
// only the longest Duration has to be rounded down.
func (c DelayChain) Next(left time.Duration) (wait time.Duration, hop bool) {
	if left <= 0 || c.Step <= 0 {
		return 0, false
	}
	if rest := left % c.Step; rest > 0 {
		left -= rest
		if left <= math.MaxInt64-c.Step {
			left += c.Step
		}
	}
	return left, left > c.Longest
}

// Hop is one wait of a message in the delay queue.
type Hop struct {
	// Message is the message's id.
	Message string
	// Deferral identifies this deferral among those of the message. It has no dots.
	Deferral string
	// Number is 1 for the first hop of a deferral.
	Number int
}

// hopPrefix begins the ids of hops.
const hopPrefix = "holdfast."

// ID returns the id by which the delay queue recognizes the hop: the same whenever this hop is
// sent, and different from that of every other hop. It is of ASCII, without spaces, and of at most
// 128 characters if the deferral has at most 32.
func (h Hop) ID() string { return h.Group() + "." + strconv.Itoa(h.Number) }

// Group returns the common part of the ids of a deferral's hops.
func (h Hop) Group() string { return hopPrefix + short(h.Message) + "." + h.Deferral }

// Next returns the hop after h.
func (h Hop) Next() Hop {
	h.Number++
	return h
}

// HopOf returns the hop of a message by its id in the delay queue and the time at which it was sent
// there. Another sender uses the message's own id there. Such a message may have been deferred
// before with the same id, but not at the same time.
func HopOf(id string, sent time.Time) Hop {
	rest, ours := strings.CutPrefix(id, hopPrefix)
	rest, number, found := cutLast(rest)
	message, deferral, complete := cutLast(rest)
	n, err := strconv.Atoi(number)
	if !ours || !found || !complete || err != nil || n < 1 {
		return Hop{Message: id, Deferral: strconv.FormatInt(sent.UnixMilli(), 10), Number: 1}
	}
	return Hop{Message: message, Deferral: deferral, Number: n}
}

func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// longestPlain is the length up to which an id of a hop contains the message's id unchanged.
const longestPlain = 64

// short returns the message's id, or a digest of it if it is long or has characters that an id must
// not have.
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

// Memory records how far deferrals were sent on, so that a redelivered hop is not sent on again:
// the delay queue recognizes that for some minutes only, and a destination never does. It keeps the
// most recent deferrals, and is lost with the process: then a message may be delivered twice, as
// any may. It is safe for concurrent use. The zero value records nothing.
type Memory struct {
	// Size is the number of deferrals that are kept.
	Size int

	mu    sync.Mutex // guards the fields below
	known map[string]*list.Element
	order list.List // of *sentOn, the most recent first
}

// sentOn is the last hop of a deferral that was sent on.
type sentOn struct {
	group  string
	number int
}

// Add records that the broker has accepted the message after hop.
func (m *Memory) Add(hop Hop) {
	m.mu.Lock()
	defer m.mu.Unlock()
	group := hop.Group()
	if e, ok := m.known[group]; ok {
		if s := e.Value.(*sentOn); s.number < hop.Number { //nolint:errcheck // there is nothing else in it
			s.number = hop.Number
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
	m.known[group] = m.order.PushFront(&sentOn{group, hop.Number})
	if len(m.known) > m.Size {
		delete(m.known, m.order.Remove(m.order.Back()).(*sentOn).group) //nolint:errcheck // as above
	}
}

// Has reports whether hop, or a later one of its deferral, is recorded.
func (m *Memory) Has(hop Hop) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.known[hop.Group()]
	return ok && e.Value.(*sentOn).number >= hop.Number //nolint:errcheck // as above
}
