package rabbitmq

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// recording is a connection that keeps all that is written.
type recording struct {
	net.Conn
	mu      sync.Mutex // guards written
	written []byte
}

func (r *recording) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.written = append(r.written, p...)
	r.mu.Unlock()
	return r.Conn.Write(p)
}

// contentHeaderSize returns the size of the content header that the client library writes of a
// message, without the envelope of the frame.
func contentHeaderSize(t *testing.T, p *amqp.Publishing) int {
	t.Helper()
	client, server := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		serve(server, nil)
	}()
	conn := &recording{Conn: client}
	defer func() {
		_ = conn.Close()
		<-served
	}()
	c, err := amqp.Open(conn, amqp.Config{
		SASL: []amqp.Authentication{&amqp.PlainAuth{}}, Vhost: "/", Locale: "en_US", FrameSize: defaultFrame,
	})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Publish("", "orders", false, false, *p); err != nil {
		t.Fatal(err)
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	for b := conn.written[len("AMQP\x00\x00\x09\x01"):]; len(b) > frameStart; {
		size := int(binary.BigEndian.Uint32(b[3:]))
		if b[0] == headerFrame {
			return size
		}
		b = b[frameStart+size+1:]
	}
	t.Fatal("no content header was written")
	return 0
}

// The driver computes the size of the frame as the client library writes it.
func TestSizeOfHeaderIsExact(t *testing.T) {
	m := &transport.Message{
		ID: "m-1", Body: []byte("b"), Headers: header.New(
			header.Field{Name: header.CorrelationID, Value: "c"}, header.Field{Name: header.ReplyToAddress, Value: "r"},
			header.Field{Name: header.ContentType, Value: "text/xml"}, header.Field{Name: header.EnclosedMessageTypes, Value: "A;B"},
			header.Field{Name: "h\xff", Value: strings.Repeat("é", 3000)}, header.Field{Name: "", Value: ""},
		),
	}
	full := encode(m)
	full.Priority, full.Timestamp, full.AppId, full.UserId, full.ContentEncoding = 3, time.Unix(1, 0), "app", "user", "gzip"
	for name, p := range map[string]*amqp.Publishing{
		"nothing": {}, "plain": {DeliveryMode: amqp.Persistent, MessageId: "m", Headers: amqp.Table{"h": "v"}}, "all": &full,
		"delayed": withDelay(full, time.Now(), time.Hour, "key"),
		"long":    {Headers: amqp.Table{"h": strings.Repeat("v", 130_000)}},
	} {
		if got, want := sizeOfHeader(p), contentHeaderSize(t, p); got != want {
			t.Errorf("%s: %d bytes, the library writes %d", name, got, want)
		}
	}
}

// A frame is accepted up to the last byte, and its size is not that of the headers.
func TestMessagesOverAFrameAreRefused(t *testing.T) {
	for _, foreign := range []int{121_000, 126_000, 130_500, 130_850, 131_008, 131_009} {
		m := &transport.Message{ID: "m-1", Headers: header.New(
			header.Field{Name: "Foreign", Value: strings.Repeat("x", foreign-len("Foreign"))},
		)}
		p := encode(m)
		size := contentHeaderSize(t, &p)
		err := check(&p, 1<<20, defaultFrame)
		if fits := size+frameStart+1 <= defaultFrame; fits != (err == nil) || err != nil && !errors.Is(err, transport.ErrTooLarge) {
			t.Errorf("%d bytes of headers, a frame of %d: %v", foreign, size, err)
		}
	}
}

func TestMoreHeadersThanAreReadAreRefused(t *testing.T) {
	p := amqp.Publishing{Headers: amqp.Table{}}
	for i := range maxElements {
		p.Headers[strconv.Itoa(i)] = ""
	}
	if err := check(&p, 1<<20, 0); err != nil {
		t.Error(err)
	}
	p.Headers["one"] = ""
	var large *transport.TooLargeError
	if err := check(&p, 1<<20, 0); !errors.As(err, &large) || large.What != "header count" {
		t.Errorf("one more: %v", err)
	}
}

// A message that the short check accepts is accepted by the whole one, delayed or not.
func TestSmallMessagesAreAccepted(t *testing.T) {
	small := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		text := func(lengths ...int) string { return strings.Repeat("x", lengths[r.IntN(len(lengths))]) }
		m := &transport.Message{ID: text(0, 36, 255, 256), Body: make([]byte, []int{0, 1000, 1001}[r.IntN(3)])}
		for _, name := range []string{
			header.CorrelationID, header.ReplyToAddress, header.ContentType, header.EnclosedMessageTypes, "CC", text(254, 255, 256),
		} {
			if r.IntN(4) > 0 && name != "CC" || r.IntN(10) == 0 {
				m.Headers.Set(name, text(0, 30, 255, 256, 30_000, 90_000, 110_000))
			}
		}
		for i := range r.IntN(20) {
			m.Headers.Set(strconv.Itoa(i), text(0, 10))
		}
		op := &transport.Operation{Message: m, TTL: time.Hour}
		if r.IntN(4) == 0 {
			op.Properties = map[string]string{PropertyPriority: text(1)}
		}
		if !isSmall(op, 1000, defaultFrame) {
			continue
		}
		small++
		p := encode(m)
		p.UserId = strings.Repeat("u", maxShort)
		for _, msg := range []*amqp.Publishing{&p, withDelay(p, time.Now(), time.Hour, strings.Repeat("k", maxShort))} {
			if err := check(msg, 1000, defaultFrame-delayedRoom); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
	}
	if small < 100 {
		t.Errorf("%d small messages of 2000", small)
	}
}

// The check of an ordinary message costs no memory: an outbox makes it for each message before the
// commit.
func TestTheShortCheckAllocatesNothing(t *testing.T) {
	op := &transport.Operation{Message: &transport.Message{ID: "m-1", Headers: header.New(
		header.Field{Name: header.CorrelationID, Value: "c"}, header.Field{Name: header.ContentType, Value: "text/xml"},
	)}}
	if n := testing.AllocsPerRun(100, func() {
		if !isSmall(op, 1000, defaultFrame) {
			t.Error("the message is not small")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A refusal for the text of a header, or for a property, is one of the content.
func TestRefusalsOfContent(t *testing.T) {
	p := encode(&transport.Message{Headers: header.New(header.Field{Name: "CC", Value: "q"})})
	_, property := withProperties(&p, map[string]string{PropertyPriority: "many"}, "")
	_, user := withProperties(&p, map[string]string{PropertyUserID: "other"}, "me")
	for name, err := range map[string]error{"routing": check(&p, 1<<20, 0), "property": property, "user": user} {
		if !errors.Is(err, transport.ErrContent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
