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
