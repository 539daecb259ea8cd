package rabbitmq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
)

func TestTheFrameReaderReadsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		f := newFrameReader(client)
		text := bytes.Repeat([]byte("0123456789"), readAhead/20)
		written := false
		go func() {
			_, err := server.Write(text)
			written = err == nil
			_ = server.Close()
		}()
		small := make([]byte, 7)
		n, err := f.Read(small)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !written {
			t.Error("a small Read has left some of it")
		}
		rest, err := io.ReadAll(f)
		if got := append(small[:n], rest...); err != nil || !bytes.Equal(got, text) {
			t.Errorf("read %d bytes, %v; want the %d that were written", len(got), err, len(text))
		}
		_ = client.Close()
	})
}

// frameOf is a frame as a broker sends it.
func frameOf(kind byte, channel uint16, payload ...byte) []byte {
	out := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	out = binary.BigEndian.AppendUint32(out, uint32(len(payload)))
	return append(append(out, payload...), frameEnd)
}

func method(class, id uint16, arguments ...byte) []byte {
	return append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, class), id), arguments...)
}

func longText(s string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
}

// contentHeader is a content header of a message with the body "abc". Its properties are given with
// their flags.
func contentHeader(properties []byte) []byte {
	payload := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, 3)
	return frameOf(headerFrame, 1, append(payload, properties...)...)
}

// gotFrom has the client library fetch a message over a connection on which a broker sends the
// given content header. It reads through in.
func gotFrom(contentHeader []byte, in func(io.Reader) io.Reader) (amqp.Delivery, error) {
	client, server := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		serve(server, contentHeader)
	}()
	defer func() {
		_ = client.Close()
		<-served
	}()
	c, err := amqp.Open(&listening{client, in(client)}, amqp.Config{
		SASL: []amqp.Authentication{&amqp.PlainAuth{}}, Vhost: "/", Locale: "en_US", FrameSize: defaultFrame,
	})
	if err != nil {
		return amqp.Delivery{}, fmt.Errorf("open: %w", err)
	}
	ch, err := c.Channel()
	if err != nil {
		return amqp.Delivery{}, fmt.Errorf("channel: %w", err)
	}
	d, _, err := ch.Get("orders", true)
	return d, err
}

// serve answers what gotFrom asks until the connection ends.
func serve(server net.Conn, contentHeader []byte) {
	const start = "\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US"
	const tune = "\x00\xff\x00\x02\x00\x00\x00\x00"
	const getOK = "\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x06orders\x00\x00\x00\x00"
	answers := map[uint32][]byte{
		10<<16 | 11: frameOf(methodFrame, 0, method(10, 30, []byte(tune)...)...),
		10<<16 | 40: frameOf(methodFrame, 0, method(10, 41, 0)...),
		20<<16 | 10: frameOf(methodFrame, 1, method(20, 11, 0, 0, 0, 0)...),
		60<<16 | 70: bytes.Join([][]byte{frameOf(methodFrame, 1, method(60, 71, []byte(getOK)...)...), contentHeader, frameOf(bodyFrame, 1, []byte("abc")...)}, nil),
	}
	defer server.Close()
	if _, err := io.ReadFull(server, make([]byte, 8)); err != nil {
		return
	}
	answer := frameOf(methodFrame, 0, method(10, 10, []byte(start)...)...)
	for {
		if _, err := server.Write(answer); err != nil {
			return
		}
		var head [frameStart]byte
		if _, err := io.ReadFull(server, head[:]); err != nil {
			return
		}
		rest := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
		if _, err := io.ReadFull(server, rest); err != nil {
			return
		}
		answer = nil
		if head[0] == methodFrame {
			answer = answers[binary.BigEndian.Uint32(rest)]
		}
	}
}

// listening is a connection that is read through a reader of its own.
type listening struct {
	net.Conn
	in io.Reader
}

func (l *listening) Read(p []byte) (int, error) { return l.in.Read(p) }

func plainly(r io.Reader) io.Reader { return r }

func framed(r io.Reader) io.Reader { return newFrameReader(r) }

// inPieces reads a stream in pieces of up to so many bytes.
func inPieces(seed uint64, most int) func(io.Reader) io.Reader {
	return func(r io.Reader) io.Reader { return newFrameReader(&pieces{r, rand.New(rand.NewPCG(seed, 1)), most}) }
}

type pieces struct {
	io.Reader
	random *rand.Rand
	most   int
}

func (p *pieces) Read(b []byte) (int, error) {
	return p.Reader.Read(b[:min(len(b), 1+p.random.IntN(p.most))])
}

// table is a header table as it is sent.
func table(entries ...string) string { return string(longText(strings.Join(entries, ""))) }

func entry(name, value string) string { return string(rune(len(name))) + name + value }

func nested(kind string, depth int) string {
	value := "V"
	for range depth {
		content := value
		if kind == "F" {
			content = entry("a", value)
		}
		value = kind + string(longText(content))
	}
	return value
}

func list(n int, element string) string { return "A" + string(longText(strings.Repeat(element, n))) }

const (
	onlyHeaders = "\x20\x00"
	// With message id and type behind the headers, and a content type before.
	allAround = "\xa0\xa0"
	before    = "\x04json"
	behind    = "\x02m1\x05Order"
)

func TestAnUnreadableHeaderTableIsReplaced(t *testing.T) {
	t.Parallel()
	count := entry("x-delivery-count", "l\x00\x00\x00\x00\x00\x00\x00\x07")
	text := entry("kept", "S"+string(longText("as it is")))
	for _, tt := range []struct {
		name, table, why string
	}{
		{"tables nested 33 deep", table(text, entry("deep", nested("F", 33)), count), "32 deep"},
		{"lists nested 33 deep", table(text, entry("deep", nested("A", 33)), count), "32 deep"},
		{"a list of 8193", table(text, entry("long", list(8193, "V")), count), "8192 elements"},
		{"a list of 9000 texts", table(text, entry("long", list(9000, "S\x00\x00\x00\x01x")), count), "8192 elements"},
		{"a list in a list", table(text, entry("long", "A"+string(longText(list(8193, "V")))), count), "8192 elements"},
		{"an unknown type", table(text, count, entry("odd", "?")), "not a table"},
		{"a text that is too long", table(text, count, entry("odd", "S\x00\x00\x10\x00x")), "not a table"},
		{"a name without a value", table(text, count, "\x01a"), "not a table"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			frame := contentHeader([]byte(allAround + before + tt.table + behind))
			if _, err := gotFrom(frame, plainly); err == nil {
				t.Error("the client library can read it without help")
			}
			for _, in := range []func(io.Reader) io.Reader{framed, inPieces(1, 10), func(r io.Reader) io.Reader { return newFrameReader(iotest.OneByteReader(r)) }} {
				d, err := gotFrom(frame, in)
				if err != nil {
					t.Fatal(err)
				}
				m := decode(&d)
				if m.Undecodable == nil || !strings.Contains(m.Undecodable.Error(), tt.why) {
					t.Errorf("undecodable because %v, want %q", m.Undecodable, tt.why)
				}
				saved, err := header.ParseUndecodable(m.Headers.Get(header.UndecodableHeaders))
				if err != nil || saved != tt.table {
					t.Errorf("%d bytes of headers are kept, %v, want the %d that came", len(saved), err, len(tt.table))
				}
				if string(m.Body) != "abc" || m.ID != "m1" || d.Type != "Order" || d.ContentType != "json" || m.Headers.Get("kept") != "as it is" {
					t.Errorf("the rest is %+v, body %q", m, m.Body)
				}
				d.Redelivered = true
				if a := attemptOf(&d, Quorum); a.N != 8 {
					t.Errorf("attempt %+v, want the 8th", a)
				}
			}
		})
	}
}

func TestReadableFramesPassUnchanged(t *testing.T) {
	for name, table := range map[string]string{
		"empty":           table(),
		"32 deep":         table(entry("deep", nested("F", 32)), entry("deeper", nested("A", 32))),
		"8192 elements":   table(entry("long", list(8192, "V"))),
		"the whole frame": table(entry("text", "S"+string(longText(strings.Repeat("x", defaultFrame-8-propertiesStart-len(before)-len(behind)-4-5-5))))),
		"all types": table(entry("t", "t\x01"), entry("b", "b\xff"), entry("B", "B\xff"), entry("s", "s\x01\x02"), entry("u", "u\x01\x02"),
			entry("I", "I\x01\x02\x03\x04"), entry("i", "i\x01\x02\x03\x04"), entry("f", "f\x01\x02\x03\x04"), entry("D", "D\x02\x01\x02\x03\x04"),
			entry("l", "l\x01\x02\x03\x04\x05\x06\x07\x08"), entry("d", "d\x01\x02\x03\x04\x05\x06\x07\x08"),
			entry("T", "T\x00\x00\x00\x00\x00\x00\x07\x08"), entry("S", "S\x00\x00\x00\x01x"), entry("x", "x\x00\x00\x00\x01x"), entry("V", "V")),
	} {
		frame := contentHeader([]byte(allAround + before + table + behind))
		want, err := gotFrom(frame, plainly)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := gotFrom(frame, inPieces(3, 1000))
		if err != nil || !reflect.DeepEqual(got.Headers, want.Headers) || got.MessageId != want.MessageId {
			t.Errorf("%s: %v, %v, want %v", name, err, got.Headers, want.Headers)
		}
	}
}

// A broker adds headers to a message that it dead-letters, which may then be larger than a frame.
func TestHeadersLargerThanAFrameAreCut(t *testing.T) {
	whole := table(entry("x-delivery-count", "l\x00\x00\x00\x00\x00\x00\x00\x07"), entry("text", "S"+string(longText(strings.Repeat("x", defaultFrame)))))
	frame := contentHeader([]byte(allAround + before + whole + behind))
	if _, err := gotFrom(frame, plainly); err == nil {
		t.Error("the client library can read it without help")
	}
	d, err := gotFrom(frame, framed)
	if err != nil {
		t.Fatal(err)
	}
	m := decode(&d)
	saved, err := header.ParseUndecodable(m.Headers.Get(header.UndecodableHeaders))
	if err != nil || !strings.HasPrefix(whole, saved) || len(saved) < defaultFrame/2 {
		t.Errorf("%d bytes of headers are kept, %v", len(saved), err)
	}
	if want := fmt.Sprintf("the first %d of their %d bytes", len(saved), len(whole)); m.Undecodable == nil || !strings.Contains(m.Undecodable.Error(), want) {
		t.Errorf("undecodable because %v, want %q", m.Undecodable, want)
	}
	if _, ok := integer(d.Headers[deliveryCount]); !ok || m.ID != "m1" {
		t.Errorf("the rest is %v, %+v", d.Headers[deliveryCount], d)
	}
}

func TestBytesThatAreNoFramePassUnchanged(t *testing.T) {
	// What a server answers that speaks another version of the protocol.
	got, err := io.ReadAll(newFrameReader(strings.NewReader("AMQP\x00\x00\x09\x01")))
	if err != nil || string(got) != "AMQP\x00\x00\x09\x01" {
		t.Errorf("%q, %v", got, err)
	}
	broken := frameOf(bodyFrame, 1, 'x')
	broken[len(broken)-1] = 0
	got, err = io.ReadAll(newFrameReader(bytes.NewReader(broken)))
	if err != nil || !bytes.Equal(got, broken) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestALossOverAnUnreadableFrameNamesTheDelivery(t *testing.T) {
	arguments := append(append([]byte{}, byte(len("holdfast-3:orders"))), "holdfast-3:orders"...)
	arguments = append(binary.BigEndian.AppendUint64(arguments, 4711), "\x00\x00\x06orders"...)
	f := newFrameReader(bytes.NewReader(frameOf(methodFrame, 1, method(60, 60, arguments...)...)))
	if _, err := io.ReadAll(f); err != nil {
		t.Fatal(err)
	}
	for reason, want := range map[string]bool{amqp.ErrSyntax.Reason: false, amqp.ErrSyntax.Error(): true, "EOF": false} {
		err := f.lossReason(&amqp.Error{Code: amqp.FrameError, Reason: reason})
		if got := strings.Contains(err.Error(), `delivery tag 4711 of queue "orders"`); got != want {
			t.Errorf("%v: names the delivery is %t", err, got)
		}
	}
	if err := f.lossReason(nil); err == nil {
		t.Error("no reason")
	}
}

// FuzzContentHeader compares with the client library: it can read each frame that passes, and a
// message that cannot be decoded keeps its body and headers.
func FuzzContentHeader(f *testing.F) {
	f.Add([]byte(onlyHeaders+table(entry("a", nested("F", 34)))), uint64(1))
	f.Add([]byte(onlyHeaders+table(entry("a", nested("A", 34)))), uint64(2))
	f.Add([]byte(onlyHeaders+table(entry("a", list(9000, "V")))), uint64(3))
	f.Add([]byte(allAround+before+table(entry("a", "S\x00\x00\x00\x01x"), entry("a", "I\x00"))+behind), uint64(4))
	f.Add([]byte("\xff\xfe"+before+before+table(entry("a", "x\x00\x00\x00\x01x"))+"\x01\x02"+strings.Repeat(before, 4)), uint64(5))
	f.Add([]byte(onlyHeaders+table(entry("a", "A\x00\x00\x00\x01I"), entry("b", "t\x01"))), uint64(6))
	f.Fuzz(func(t *testing.T, properties []byte, seed uint64) {
		if len(properties) < 2 || len(properties) > 2*defaultFrame {
			t.Skip("no property list, or one that no broker has")
		}
		frame := contentHeader(properties)
		got, err := gotFrom(frame, inPieces(seed, 100))
		if err != nil || string(got.Body) != "abc" {
			t.Fatalf("body %q, %v", got.Body, err)
		}
		saved, replaced := got.Headers[header.UndecodableHeaders].([]byte)
		want, err := gotFrom(frame, plainly)
		if !replaced {
			if err != nil {
				t.Fatalf("not replaced, but the client library fails: %v", err)
			}
			if fmt.Sprint(want.Headers) != fmt.Sprint(got.Headers) { // NaN is not equal to itself
				t.Fatalf("%v, want %v", got.Headers, want.Headers)
			}
			return
		}
		if len(saved) > 4 && len(saved) < defaultFrame/2 && !bytes.Contains(properties, saved) && !bytes.Contains(properties, saved[4:]) {
			t.Fatalf("the header holds what did not come: %q", saved)
		}
		m := decode(&got)
		if m.Undecodable == nil || errors.Is(m.Undecodable, io.EOF) {
			t.Fatalf("a message whose headers were replaced is undecodable because %v", m.Undecodable)
		}
	})
}
