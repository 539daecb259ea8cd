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

// peerChannel is what the peer's numbers of channels differ by.
const peerChannel = 100

// begun returns the peer's answer to a begin.
func begun(channel uint16) []byte {
	return frameOf(channel+peerChannel, beginCode, string(binary.BigEndian.AppendUint16([]byte("\xc0\x04\x01\x60"), channel)))
}

// attachOf returns the frame by which the library attaches a link to $cbs.
func attachOf(channel uint16) []byte { return frameOf(channel, attachCode, "\xc0\x08\x01\xa1\x04$cbs") }

// answerOf returns a transfer of the peer with a status.
func answerOf(channel uint16, status uint32) []byte {
	return frameOf(channel+peerChannel, transferCode, string(binary.BigEndian.AppendUint32([]byte("\xa1\x0bstatus-code\x71"), status)))
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
					write(t, s, frameOf(channel, beginCode, ""))
					w.answers <- begun(channel)
					write(t, s, attachOf(channel))
					write(t, s, frameOf(channel, transferCode, token))
					for w.count(token) <= try { // until the peer has received it
						time.Sleep(10 * time.Millisecond)
					}
					if time.Since(begin) >= busyFor {
						w.answers <- answerOf(channel, 200)
						return
					}
					w.answers <- answerOf(channel, 503)
				}
			})
		}
		time.Sleep(time.Second)
		write(t, s, frameOf(9, transferCode, "a message"))
		if w.count("a message") != 1 {
			t.Error("what is no token waits")
		}
		all.Wait()
		took := time.Since(begin)
		// Eight at the beginning, one a second at most while refused, and the waiting ones when one
		// was accepted.
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
		want := bytes.Repeat([]byte{beginCode, attachCode, transferCode}, len(got)/3)
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
