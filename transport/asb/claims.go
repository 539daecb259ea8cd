package asb

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// claims delays the requests by which the client library presents tokens to $cbs, while the service
// refuses them because the namespace is throttled. The library refreshes tokens by itself. Its
// pauses between the tries of a refresh are those of its retries, which the driver turns off
// because a send must not be repeated. So the first frame of a try is kept until the pause is over,
// together with the following frames of its channel. Other frames are not delayed.
type claims struct {
	socket  *socket
	writing sync.Mutex // orders writes; locked before mu

	mu    sync.Mutex // guards the fields below; not held over a write
	found claimAnswers
	pace  backoff.Backoff
	until time.Time // end of the pause; zero unless the service has refused a token
	kept  [][]byte  // frames, in their order
	timer *time.Timer
	over  bool
}

// send writes a frame, or keeps it.
func (c *claims) send(frame []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.keep(frame) {
		return len(frame), nil
	}
	return c.socket.transmit(frame)
}

func (c *claims) keep(frame []byte) bool {
	if !hasChannel(frame) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := beginsClaim(frame)
	if claim {
		c.found.attached(channelOf(frame))
	}
	behind := slices.ContainsFunc(c.kept, func(first []byte) bool { return sameChannel(first, frame) })
	pause := time.Until(c.until)
	if !behind && (pause <= 0 || c.over || !claim) {
		return false
	}
	if c.kept = append(c.kept, bytes.Clone(frame)); len(c.kept) == 1 {
		c.timer = time.AfterFunc(pause, c.next)
	}
	return true
}

// next writes the frames of the channel that has waited longest, if the pause is over.
func (c *claims) next() {
	c.writing.Lock()
	defer c.writing.Unlock()
	frames := c.due()
	if frames == nil {
		return
	}
	_ = c.socket.SetWriteDeadline(time.Now().Add(dialTimeout)) // the library's may be over; on failure the write fails too
	for _, frame := range frames {
		if _, err := c.socket.transmit(frame); err != nil {
			return // the connection is lost, which its reader reports
		}
	}
}

func (c *claims) due() (frames [][]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || len(c.kept) == 0 {
		return nil
	}
	if early := time.Until(c.until); early > 0 { // the service has refused another token
		c.timer.Reset(early)
		return nil
	}
	var others [][]byte
	for _, frame := range c.kept {
		if sameChannel(frame, c.kept[0]) {
			frames = append(frames, frame)
		} else {
			others = append(others, frame)
		}
	}
	c.kept = others
	if !c.until.IsZero() {
		c.until = time.Now().Add(denialPause)
	}
	if len(others) > 0 {
		c.timer.Reset(time.Until(c.until))
	}
	return frames
}

// received looks for answers of $cbs in received data.
func (c *claims) received(data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, status := range c.found.read(data) {
		c.answered(status)
	}
}

// answered records an answer of $cbs. Called with mu held.
func (c *claims) answered(status int) {
	switch {
	case busyStatus(status):
		c.until = time.Now().Add(c.pace.Next())
	case !c.until.IsZero():
		c.until = time.Time{}
		c.pace.Reset()
		if len(c.kept) > 0 && !c.over {
			c.timer.Reset(0)
		}
	}
}

// close drops the kept frames.
func (c *claims) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// hasChannel reports whether data is a frame of a channel. An empty frame, which keeps a connection
// alive, has none.
func hasChannel(data []byte) bool {
	return len(data) > frameHead && data[frameStart] == 2 && data[frameType] == 0 && int(binary.BigEndian.Uint32(data)) == len(data)
}

func sameChannel(a, b []byte) bool {
	return channelOf(a) == channelOf(b)
}

// beginsClaim reports whether a frame attaches a link to $cbs, as the first frame of each try does.
func beginsClaim(frame []byte) bool {
	code, fields := performative(frame)
	return code == attachCode && bytes.Contains(fields, cbsAddress)
}

// Frames of AMQP 1.0, part 2.3: four bytes for the size, one for the offset of the body, in words
// of four bytes, one for the type, two for the channel. A body begins with the descriptor of its
// type.
const (
	frameHead  = 8
	frameStart = 4
	frameType  = 5
	frameChan  = 6
)

const (
	// frameBegin is how much of a frame is enough to read the fields of a begin, and the code of
	// every other frame.
	frameBegin = 64
	// maxAnswer is how much of an answer of $cbs is kept.
	maxAnswer = 16 << 10
)

// Codes of performatives, AMQP 1.0, part 2.7.
const (
	beginCode    = 0x11
	attachCode   = 0x12
	transferCode = 0x14
	endCode      = 0x17
)

var (
	protocolHead = []byte("AMQP")                // begins a header of eight bytes, which is no frame
	cbsAddress   = []byte("\xa1\x04$cbs")        // a string of AMQP
	statusKey    = []byte("\xa1\x0bstatus-code") // in answers of $cbs; those of $management have another key
)

// claimAnswers finds the answers of $cbs among the frames of a connection. An answer is a transfer
// on a channel on which the client library has attached a link to $cbs: the library opens a channel
// for each try. The same bytes in a frame of another channel are data of some message. It is not
// safe for concurrent use.
type claimAnswers struct {
	frame    []byte            // the current frame, as much as is needed and has come
	left     int               // bytes of the current frame that have not come
	broken   bool              // the data are no frames
	channels map[uint16]uint16 // the channel of the peer for each of the library's
	claims   map[uint16]bool   // channels of the peer with a link to $cbs
}

// attached records a link to $cbs on a channel of the library's.
func (a *claimAnswers) attached(channel uint16) {
	if peer, ok := a.channels[channel]; ok {
		if a.claims == nil {
			a.claims = map[uint16]bool{}
		}
		a.claims[peer] = true
	}
}

// read returns the statuses of the answers in received data, which may begin and end within a
// frame.
func (a *claimAnswers) read(data []byte) (statuses []int) {
	for len(data) > 0 && !a.broken {
		if n := frameHead - len(a.frame); n > 0 {
			n = min(n, len(data))
			a.frame, data = append(a.frame, data[:n]...), data[n:]
			a.head()
			continue
		}
		n := min(a.left, len(data))
		a.frame = append(a.frame, data[:min(n, max(0, a.needed()-len(a.frame)))]...)
		a.left, data = a.left-n, data[n:]
		if a.left == 0 {
			if status := a.end(); status != 0 {
				statuses = append(statuses, status)
			}
		}
	}
	return statuses
}

// head reads the size of the current frame.
func (a *claimAnswers) head() {
	if len(a.frame) < frameHead {
		return
	}
	if bytes.HasPrefix(a.frame, protocolHead) {
		a.frame = a.frame[:0]
		return
	}
	size := int64(binary.BigEndian.Uint32(a.frame))
	switch a.left = int(size - frameHead); {
	case size < frameHead:
		a.broken = true
	case a.left == 0: // an empty frame keeps a connection alive
		a.frame = a.frame[:0]
	}
}

// needed returns how much of the current frame is needed.
func (a *claimAnswers) needed() int {
	if a.claims[channelOf(a.frame)] {
		return maxAnswer
	}
	return frameBegin
}

// end reads the current frame, which is complete. It returns the status of an answer of $cbs, or 0.
func (a *claimAnswers) end() (status int) {
	frame := a.frame
	a.frame = frame[:0]
	peer := channelOf(frame)
	switch code, fields := performative(frame); code {
	case beginCode:
		if channel, ok := remoteChannel(fields); ok {
			if a.channels == nil {
				a.channels = map[uint16]uint16{}
			}
			a.channels[channel] = peer
			delete(a.claims, peer)
		}
	case endCode:
		delete(a.claims, peer)
	case transferCode:
		if a.claims[peer] {
			_, value, _ := bytes.Cut(fields, statusKey)
			return statusIn(value)
		}
	}
	return 0
}

func channelOf(frame []byte) uint16 { return binary.BigEndian.Uint16(frame[frameChan:]) }

// performative returns the code of a frame's performative, and the data behind the code; 0 for an
// empty or another frame.
func performative(frame []byte) (code byte, fields []byte) {
	const described, smallUlong = 0x00, 0x53
	start := 4 * int(frame[frameStart])
	if frame[frameType] != 0 || start < frameHead || len(frame) < start+3 || frame[start] != described || frame[start+1] != smallUlong {
		return 0, nil
	}
	return frame[start+2], frame[start+3:]
}

// remoteChannel returns the first field of a begin. A begin that answers another has the channel of
// the other there.
func remoteChannel(fields []byte) (channel uint16, ok bool) {
	const list8, list32, ushort = 0xc0, 0xd0, 0x60
	at := 3 // the code of the list, its size and its count
	if len(fields) > 0 && fields[0] == list32 {
		at = 9
	} else if len(fields) == 0 || fields[0] != list8 {
		return 0, false
	}
	if len(fields) < at+3 || fields[at] != ushort {
		return 0, false
	}
	return binary.BigEndian.Uint16(fields[at+1:]), true
}

// statusIn returns the number at the beginning of data, an int of AMQP in one of its two forms, or
// 0 if there is none.
func statusIn(data []byte) int {
	const small, full = 0x54, 0x71
	switch {
	case len(data) >= 2 && data[0] == small:
		return int(data[1])
	case len(data) >= 5 && data[0] == full:
		return int(binary.BigEndian.Uint32(data[1:]))
	}
	return 0
}
