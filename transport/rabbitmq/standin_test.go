package rabbitmq

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// standIn is a broker for a conn's sends. It confirms each message at once, except those for silent
// queues.
type standIn struct {
	url string
	// published has the queue of each message that arrives on a channel with confirms, in order.
	published chan string
	// topology answers declarations and routes messages; nil leaves both unanswered.
	topology *standInTopology

	mu     sync.Mutex // guards the rest
	silent map[string]bool
	kept   []keptPublish
}

// keptPublish is a message that was not confirmed.
type keptPublish struct {
	to      *standInConn
	channel uint16
	tag     uint64
	queue   string
	content []byte // its frames after the method
}

// standInConn is a connection to a standIn.
type standInConn struct {
	later []standInFrame // used by serve alone
	net.Conn
	broker *standIn
	tags   map[uint16]uint64 // of the last message, by channel with confirms

	write sync.Mutex
}

func newStandIn(t *testing.T, silent ...string) *standIn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &standIn{
		url: "amqp://guest:guest@" + l.Addr().String() + "/", published: make(chan string, 1<<16), silent: make(map[string]bool),
	}
	for _, queue := range silent {
		b.silent[queue] = true
	}
	var served sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		served.Wait()
	})
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { (&standInConn{Conn: c, broker: b, tags: make(map[uint16]uint64)}).serve() })
		}
	})
	return b
}

// wait returns when n more messages for the queue have arrived.
func (b *standIn) wait(t *testing.T, queue string, n int) {
	t.Helper()
	late := time.After(time.Minute)
	for n > 0 {
		select {
		case to := <-b.published:
			if to == queue {
				n--
			}
		case <-late:
			t.Fatal("the messages did not arrive")
		}
	}
}

// release ends the silence of a queue, and answers its first n messages. Unroutable ones are
// returned before.
func (b *standIn) release(queue string, n int, unroutable bool) {
	b.mu.Lock()
	var answered []keptPublish
	b.kept = slices.DeleteFunc(b.kept, func(p keptPublish) bool {
		if p.queue != queue || len(answered) == n {
			return false
		}
		answered = append(answered, p)
		return true
	})
	b.silent[queue] = false
	b.mu.Unlock()
	for _, p := range answered {
		if unroutable {
			p.to.send(append(frameOf(methodFrame, p.channel, method(60, 50, returned312(p.queue)...)...), p.content...))
		}
	}
	for _, p := range answered {
		p.to.confirm(p.channel, p.tag)
	}
}

// returned312 has the arguments of the notice that no queue of the name exists.
func returned312(queue string) []byte {
	out := append([]byte{312 >> 8, 312 & 0xff, 8}, "NO_ROUTE"...)
	return append(append(out, 0, byte(len(queue))), queue...)
}

func (c *standInConn) confirm(channel uint16, tag uint64) {
	c.send(frameOf(methodFrame, channel, method(60, 80, append(binary.BigEndian.AppendUint64(nil, tag), 0)...)...))
}

func (c *standInConn) send(frames []byte) {
	c.write.Lock()
	defer c.write.Unlock()
	_, _ = c.Write(frames) // a connection that has ended needs no answers
}

// serve answers until the connection ends.
func (c *standInConn) serve() {
	const start = "\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US"
	const tune = "\x00\xff\x00\x02\x00\x00\x00\x00"
	const (
		startOK, tuneOK, open, closing = 10<<16 | 11, 10<<16 | 31, 10<<16 | 40, 10<<16 | 50
		channelClose                   = 20<<16 | 40
		publish, confirmSelect         = 60<<16 | 40, 85<<16 | 10
		txSelect, txCommit, txRollback = 90<<16 | 10, 90<<16 | 20, 90<<16 | 30
	)
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
		return
	}
	c.send(frameOf(methodFrame, 0, method(10, 10, []byte(start)...)...))
	for {
		kind, channel, payload, err := c.next(anyChannel)
		if err != nil {
			return
		}
		if kind == heartbeat {
			c.send(frameOf(heartbeat, 0))
		}
		if kind != methodFrame {
			continue
		}
		class, id := binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])
		ok := func(arguments ...byte) { c.send(frameOf(methodFrame, channel, method(class, id+1, arguments...)...)) }
		switch uint32(class)<<16 | uint32(id) {
		case startOK:
			c.send(frameOf(methodFrame, 0, method(10, 30, []byte(tune)...)...))
		case tuneOK:
		case open:
			ok(0)
		case channelOpen:
			if c.broker.topology != nil && !c.broker.topology.opens(c, channel) {
				return
			}
			ok(0, 0, 0, 0)
		case confirmSelect:
			c.tags[channel] = 0
			ok()
		case closing, channelClose, txSelect, txCommit, txRollback:
			delete(c.tags, channel)
			ok()
		case publish:
			if !c.publish(channel, payload) {
				return
			}
		default:
			if c.broker.topology != nil && !c.broker.topology.answer(c, channel, payload) {
				return
			}
		}
	}
}

// publish reads a message behind the method of its frame. It reports whether the connection lives.
func (c *standInConn) publish(channel uint16, payload []byte) bool {
	exchange := int(payload[6])
	key := payload[7+exchange:]
	p := keptPublish{to: c, channel: channel, queue: string(key[1 : 1+key[0]])}
	for size := -1; size != 0; {
		kind, _, content, err := c.next(int(channel))
		if err != nil {
			return false
		}
		p.content = append(p.content, frameOf(kind, channel, content...)...)
		if size < 0 {
			size = int(binary.BigEndian.Uint64(content[4:]))
		} else {
			size -= len(content)
		}
	}
	if _, ok := c.tags[channel]; !ok {
		return true
	}
	c.tags[channel]++
	p.tag = c.tags[channel]
	b := c.broker
	if b.topology != nil {
		b.topology.route(string(payload[7:7+exchange]), p.queue)
	}
	b.mu.Lock()
	silent := b.silent[p.queue]
	if silent {
		b.kept = append(b.kept, p)
	}
	b.mu.Unlock()
	if !silent {
		c.confirm(channel, p.tag)
	}
	b.published <- p.queue
	return true
}

// anyChannel is for next.
const anyChannel = -1

// next returns the next frame of a channel. Frames of other channels between the frames of a
// publish are kept.
func (c *standInConn) next(channel int) (kind byte, of uint16, payload []byte, err error) {
	for i, f := range c.later {
		if channel == anyChannel || int(f.of) == channel {
			c.later = slices.Delete(c.later, i, i+1)
			return f.kind, f.of, f.payload, nil
		}
	}
	for {
		kind, of, payload, err = readFrame(c)
		if err != nil || channel == anyChannel || int(of) == channel {
			return kind, of, payload, err
		}
		c.later = append(c.later, standInFrame{kind, of, payload})
	}
}

// standInFrame is a frame that is read and not handled.
type standInFrame struct {
	kind    byte
	of      uint16
	payload []byte
}

// readFrame reads a frame as a client sends it.
func readFrame(r io.Reader) (kind byte, channel uint16, payload []byte, err error) {
	var head [frameStart]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, nil, err
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	_, err = io.ReadFull(r, payload)
	return head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1], err
}
