package brokertest_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// Codes of performatives, AMQP 1.0, part 2.7.
const (
	openCode     = 0x10
	beginCode    = 0x11
	attachCode   = 0x12
	flowCode     = 0x13
	transferCode = 0x14
	detachCode   = 0x16
	endCode      = 0x17
	closeCode    = 0x18
)

// Values of AMQP 1.0, part 1.6.
var (
	null, yes, no = []byte{0x40}, []byte{0x41}, []byte{0x42}
	anyWindow     = number(5000)
)

func number(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0x70}, n) }
func octet(n byte) []byte    { return []byte{0x50, n} }
func word(s string) []byte   { return append([]byte{0xa1, byte(len(s))}, s...) } //nolint:gosec // short
func binary8(s string) []byte {
	return append([]byte{0xa0, byte(len(s))}, s...) //nolint:gosec // short
}

// compound returns a list or a map.
func compound(code byte, fields ...[]byte) []byte {
	all := slices.Concat(fields...)
	b := binary.BigEndian.AppendUint32([]byte{code}, uint32(len(all)+4)) //nolint:gosec // short
	b = binary.BigEndian.AppendUint32(b, uint32(len(fields)))            //nolint:gosec // short
	return append(b, all...)
}

func described(code byte, value []byte) []byte { return append([]byte{0x00, 0x53, code}, value...) }

// frame returns a frame of channel 0.
func frame(kind, code byte, payload string, fields ...[]byte) []byte {
	body := append(described(code, compound(0xd0, fields...)), payload...)
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)+8)) //nolint:gosec // short
	return append(append(b, 2, kind, 0, 0), body...)
}

// attachTo returns the attach of a client that receives from an address, or sends to it.
func attachTo(handle uint32, address string, receives bool, sender, receiver byte) []byte {
	role, terminus := no, described(0x29, compound(0xd0, word(address)))
	source, target := described(0x28, compound(0xd0)), terminus
	if receives {
		role, source, target = yes, described(0x28, compound(0xd0, word(address))), described(0x29, compound(0xd0, word("replies")))
	}
	return frame(0, attachCode, "", word(fmt.Sprint("link-", handle)), number(handle), role, octet(sender), octet(receiver), source, target, null, null, number(0))
}

// creditOf returns the flow that grants credit to a link.
func creditOf(handle uint32) []byte {
	return frame(0, flowCode, "", number(0), anyWindow, number(0), anyWindow, number(handle), number(0), number(10))
}

// wire is a client that speaks frames.
type wire struct {
	*bus
	net.Conn
}

// dialFrames connects, with a mechanism of SASL, and presents a token for each address.
func dialFrames(b *bus, mechanism, token string, addresses ...string) *wire {
	b.Helper()
	c, err := net.Dial("tcp", b.host())
	b.must(err)
	b.Cleanup(func() { _ = c.Close() })
	b.must(c.SetDeadline(time.Now().Add(3 * time.Minute)))
	w := &wire{b, c}
	w.write([]byte("AMQP\x03\x01\x00\x00"))
	w.protocol()
	offered := w.until(0x40)
	if !bytes.Contains(offered, []byte(mechanism)) {
		b.Fatalf("mechanism %s is not offered: %q", mechanism, offered)
	}
	symbol := append([]byte{0xa3, byte(len(mechanism))}, mechanism...) //nolint:gosec // short
	w.write(frame(1, 0x41, "", symbol, binary8(""), word("host")))
	w.until(0x44)
	w.write([]byte("AMQP\x00\x01\x00\x00"), frame(0, openCode, "", word("client"), word("host")),
		frame(0, beginCode, "", null, number(0), anyWindow, anyWindow),
		attachTo(0, "$cbs", false, 1, 0), attachTo(1, "$cbs", true, 1, 0), creditOf(1))
	w.protocol()
	for i, address := range addresses {
		request := string(described(0x73, compound(0xd0, word("id"), null, null, null, word("replies")))) +
			string(described(0x74, compound(0xd1, word("operation"), word("put-token"), word("type"), word("jwt"), word("name"), word("amqp://host/"+address)))) +
			string(described(0x77, word(token)))
		w.write(frame(0, transferCode, request, number(0), number(uint32(i)), binary8(fmt.Sprint("t", i)), number(0), yes)) //nolint:gosec // short
		if answer := w.until(transferCode); !bytes.Contains(answer, binary.BigEndian.AppendUint32([]byte{0x71}, 200)) && !bytes.Contains(answer, []byte{0x54, 200}) {
			b.Fatalf("the token for %q is refused: %q", address, answer)
		}
	}
	return w
}

func (w *wire) write(frames ...[]byte) {
	w.Helper()
	_, err := w.Write(slices.Concat(frames...)) // in one write
	w.must(err)
}

func (w *wire) protocol() {
	w.Helper()
	_, err := io.ReadFull(w.Conn, make([]byte, 8))
	w.must(err)
}

// read returns the code and the body of the next frame.
func (w *wire) read() (code byte, body []byte) {
	w.Helper()
	for {
		head := make([]byte, 8)
		_, err := io.ReadFull(w.Conn, head)
		w.must(err)
		body = make([]byte, binary.BigEndian.Uint32(head)-8)
		_, err = io.ReadFull(w.Conn, body)
		w.must(err)
		if len(body) > 2 { // else it keeps the connection alive
			return body[2], body[3:]
		}
	}
}

// until returns the next frame with a code.
func (w *wire) until(code byte) []byte {
	w.Helper()
	for {
		if got, body := w.read(); got == code {
			return body
		}
	}
}

// next returns the codes of the next frames without flows and dispositions.
func (w *wire) next(n int) (codes []byte) {
	w.Helper()
	for len(codes) < n {
		if code, _ := w.read(); code != flowCode && code != 0x15 {
			codes = append(codes, code)
		}
	}
	return codes
}

// Microsoft's client sends an attach and its credit in one write.
func TestServiceBusAnswersAnAttachFirst(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("x"))
	b.Control.Admit("a-token", "Send", "Listen")
	w := dialFrames(b, "MSSBCBS", "a-token", q)
	w.write(attachTo(2, q, true, 0, 0), creditOf(2))
	if got := w.next(2); !slices.Equal(got, []byte{attachCode, transferCode}) {
		t.Errorf("frames %x, want the attach, and then the message", got)
	}
	b.equal(b.Control.State().Queues[q].Locked, 1)
	q = b.queue(admin.QueueProperties{})
	other := dialFrames(b, "ANONYMOUS", "a-token", q)
	b.send(q, text("y"))
	other.write(attachTo(2, q, true, 0, 0), creditOf(2), attachTo(3, q, false, 2, 0))
	got := other.next(3)
	slices.Sort(got[:2])
	if !slices.Equal(got, []byte{attachCode, attachCode, transferCode}) {
		t.Errorf("frames %x, want both attaches, and then the message", got)
	}
}

// A client takes the answer for the mode of the link: it would send unsettled with equal tags.
func TestServiceBusAnswersSettleModes(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	b.Control.Admit("a-token", "Send", "Listen")
	for _, address := range []string{q, "/" + q} {
		w := dialFrames(b, "ANONYMOUS", "a-token", address)
		handle := uint32(2)
		for _, receives := range []bool{false, true} {
			for _, modes := range [][2]byte{{0, 0}, {1, 0}, {2, 1}} {
				w.write(attachTo(handle, address, receives, modes[0], modes[1]))
				body := w.until(attachCode)
				if want := slices.Concat(octet(modes[0]), octet(modes[1])); !bytes.Contains(body, want) {
					t.Errorf("%s, receives %t: the answer %x has not the modes %x", address, receives, body, want)
				}
				handle++
			}
		}
	}
}

// Microsoft's client drains the credit of a link before it closes the link, and waits for the
// answer.
func TestServiceBusAnswersADrain(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	b.Control.Admit("a-token", "Send", "Listen")
	w := dialFrames(b, "ANONYMOUS", "a-token", q)
	w.write(attachTo(2, q, true, 0, 0), creditOf(2))
	w.until(attachCode)
	for round := range uint32(3) {
		b.send(q, text("x"))
		w.until(transferCode)
		count := 10*round + 1 // one message of this round, and ten credits of each former
		w.write(frame(0, flowCode, "", number(round+1), anyWindow, number(0), anyWindow, number(2), number(count), number(9), null, yes))
		if body := w.until(flowCode); !bytes.Contains(body, yes) {
			t.Errorf("round %d: the flow %x does not say that the credit is drained", round, body)
		}
		b.send(q, text("too late"))
		b.equal(b.Control.State().Queues[q].Locked, int(round+1)) //nolint:gosec // small
		b.complete(q)
		w.write(frame(0, flowCode, "", number(round+1), anyWindow, number(0), anyWindow, number(2), number(10*(round+1)), number(10)))
	}
}

// A client waits for the answer to each end: of a link, of its session, and of the connection.
func TestServiceBusAnswersTheEndOfAClient(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	b.Control.Admit("a-token", "Send", "Listen")
	ends := [][]byte{frame(0, detachCode, "", number(2), yes), frame(0, detachCode, "", number(3), yes), frame(0, endCode, ""), frame(0, closeCode, "")}
	want := []byte{detachCode, detachCode, endCode, closeCode}
	for name, together := range map[string]bool{"one by one": false, "in one write": true} {
		w := dialFrames(b, "ANONYMOUS", "a-token", q)
		w.write(attachTo(2, q, true, 0, 0), creditOf(2), attachTo(3, q, false, 2, 0))
		w.next(2)
		if together {
			w.write(ends...)
			if got := w.next(len(want)); !slices.Equal(got, want) {
				t.Errorf("%s: %x, want %x", name, got, want)
			}
		} else {
			for i, end := range ends {
				w.write(end)
				if got := w.next(1); got[0] != want[i] {
					t.Errorf("%s: %x, want %x", name, got[0], want[i])
				}
			}
		}
		if n, err := io.Copy(io.Discard, w.Conn); err != nil || n > 0 {
			t.Errorf("%s: %d bytes behind the close, %v", name, n, err)
		}
	}
}
