package asb

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// wire is a connection to the test.
type wire struct {
	net.Conn
	mu      sync.Mutex
	written [][]byte
	answers chan []byte
}

func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = append(w.written, bytes.Clone(b))
	return len(b), nil
}

func (w *wire) Read(b []byte) (int, error) { return copy(b, <-w.answers), nil }

func (w *wire) SetWriteDeadline(time.Time) error { return nil }

func (w *wire) Close() error { return nil }

// count returns the number of written frames that contain a text.
func (w *wire) count(text string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, frame := range w.written {
		if bytes.Contains(frame, []byte(text)) {
			n++
		}
	}
	return n
}

func frameOf(channel uint16, code byte, text string) []byte {
	body := append([]byte{0x00, 0x53, code}, text...)
	frame := make([]byte, frameHead, frameHead+len(body))
	binary.BigEndian.PutUint32(frame, uint32(frameHead+len(body))) //nolint:gosec // some bytes
	frame[frameStart] = 2
	binary.BigEndian.PutUint16(frame[frameChan:], channel)
	return append(frame, body...)
}

const attachFrame, beginFrame, transferFrame = 0x12, 0x11, 0x14

func answerOf(status uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte("\xa1\x0bstatus-code\x71"), status)
}

// The library repeats a refused refresh at once, and each link has two tokens to refresh.
func TestATokenThatIsRefusedIsNotShownWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answers: make(chan []byte)}
		s := newSocket(w, func() {})
		var read sync.WaitGroup
		read.Go(func() {
			buffer := make([]byte, 1024)
			for {
				if n, _ := s.Read(buffer); n == 0 {
					return
				}
			}
		})
		begin := time.Now()
		const busyFor = 30 * time.Second
		var all sync.WaitGroup
		for channel := range uint16(8) {
			all.Go(func() {
				for try := 0; ; try++ {
					token := string(rune('a'+channel)) + "-token"
					write(t, s, frameOf(channel, beginFrame, ""))
					write(t, s, frameOf(channel, attachFrame, "$cbs"))
					write(t, s, frameOf(channel, transferFrame, token))
					for w.count(token) <= try { // until the peer has received it
						time.Sleep(10 * time.Millisecond)
					}
					if time.Since(begin) >= busyFor {
						w.answers <- answerOf(200)
						return
					}
					w.answers <- answerOf(503)
				}
			})
		}
		time.Sleep(time.Second)
		write(t, s, frameOf(9, transferFrame, "a message"))
		if w.count("a message") != 1 {
			t.Error("what is no token waits")
		}
		all.Wait()
		took := time.Since(begin)
		// Eight at the beginning, one a second at most while refused, and the waiting ones when one was accepted.
		if got, most := w.count("$cbs"), 8+int(busyFor/time.Second)+8; got > most {
			t.Errorf("%d tokens in %v, want at most %d", got, took, most)
		}
		if took > busyFor+2*throttleMax {
			t.Errorf("the last token was shown after %v", took)
		}
		checkOrder(t, w)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		close(w.answers)
		read.Wait()
	})
}

// checkOrder checks that the frames of each channel came in their order.
func checkOrder(t *testing.T, w *wire) {
	t.Helper()
	codes := map[uint16][]byte{}
	for _, frame := range w.written {
		channel := binary.BigEndian.Uint16(frame[frameChan:])
		codes[channel] = append(codes[channel], frame[frameHead+2])
	}
	delete(codes, 9)
	for channel, got := range codes {
		want := bytes.Repeat([]byte{beginFrame, attachFrame, transferFrame}, len(got)/3)
		if !slices.Equal(got, want) {
			t.Errorf("channel %d: frames %x", channel, got)
		}
	}
}

func write(t *testing.T, s *socket, frame []byte) {
	t.Helper()
	if n, err := s.Write(frame); n != len(frame) || err != nil {
		t.Errorf("Write = %d, %v", n, err)
	}
}

func TestStatusesOfClaimsAreFound(t *testing.T) {
	for name, tt := range map[string]struct {
		data []byte
		want int
	}{
		"an int":       {[]byte("\x71\x00\x00\x01\xf7rest"), 503},
		"a small int":  {[]byte("\x54\x64"), 100},
		"cut short":    {[]byte("\x71\x00\x00"), 0},
		"another type": {[]byte("\xa1\x03503"), 0},
		"nothing":      {nil, 0},
	} {
		if got := statusIn(tt.data); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}
