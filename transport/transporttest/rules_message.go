package transporttest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

var messageRules = []rule{
	newRule("message-whole", messageWhole,
		"A received message has exactly the id, headers and body with which it was sent."),
	newRule("message-any-text", messageAnyText,
		"Header names and values in any script arrive unchanged. Values can be empty or long, and contain quotes and line "+
			"breaks."),
	newRule("message-large-body", messageLargeBody,
		"A body of a megabyte, or of Limits.MaxBody if that is less, arrives unchanged."),
	newRule("message-apart", messageApart, "A message is received only from the queue to which it was sent."),
	newRule("message-reopened", messageReopened,
		"Messages outlive the connection that sent them: a transport that is opened again receives them."),
	newRule("message-identity", messageIdentity,
		"A message keeps its id, headers and body in retries, releases and copies."),
	newRule("message-unnamed", messageUnnamed,
		"Two equal messages without an id are two messages. Each has an id of its own, a transport.ContentID, or no id."),
	newRule("message-kept", messageKept,
		"A received message does not change when it is settled or when other messages are received."),
	newRule("message-undecodable", messageUndecodable,
		"A message that the driver cannot decode is delivered with Undecodable set. It can be copied and completed, and "+
			"does not delay others.", undecodable),
	newRule("message-translated", messageTranslated,
		"Translation returns the user's function unchanged, or nil without one. The driver never calls it: messages are "+
			"delivered, retried and copied as they were sent.", translating, translation),
}

func messageWhole(t *test) {
	c, q, r := t.receiverOf(t.open())
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for i, body := range [][]byte{[]byte(`{"order":7}`), nil, {}, every, []byte("\x00"), []byte("ünï")} {
		m := message(fmt.Sprint("m-", i))
		m.Body = body
		t.dispatch(c, transport.Operation{Message: m, Queue: q})
		t.complete(t.whole(r, m))
	}
}

func messageAnyText(t *test) {
	c, q := t.queueOf(t.open())
	m := message("m")
	for _, f := range []header.Field{
		{Name: "Größe", Value: "zwölf Ellen"},
		{Name: "ключ", Value: "значение"},
		{Name: "名前", Value: "日本語のテキスト"},
		{Name: "🙂", Value: "👩‍👩‍👧 and ☂"},
		{Name: "Kit.Quotes", Value: `"double", 'single', \back, {curly}`},
		{Name: "Kit.Lines", Value: "one\ntwo\r\nthree\tfour"},
		{Name: "Kit.Empty", Value: ""},
		{Name: "Kit.Spaces", Value: "  around  "},
		{Name: "Kit.Long", Value: strings.Repeat("stack trace ", 400)},
		{Name: "kit.quotes", Value: "names are case-sensitive"},
	} {
		m.Headers.Set(f.Name, f.Value)
	}
	t.dispatch(c, transport.Operation{Message: m, Queue: q})
	t.complete(t.whole(t.receiver(c, q), m))
}

func messageLargeBody(t *test) {
	c, q := t.queueOf(t.open())
	size := 1 << 20
	if most := c.Limits().MaxBody; most > 0 {
		size = min(size, most)
	}
	m := message("large")
	m.Body = bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
	t.dispatch(c, transport.Operation{Message: m, Queue: q})
	d := t.one(t.receiver(c, q), "large")
	if !bytes.Equal(d.Message().Body, m.Body) {
		t.Errorf("a body of %d bytes arrived with %d, or not the same ones", size, len(d.Message().Body))
	}
	t.complete(d)
}

func messageApart(t *test) {
	c := t.open()
	a, b := t.queue(c, "a"), t.queue(c, "b")
	t.dispatch(c, to(a, "a-1"), to(b, "b-1"), to(a, "a-2"))
	t.holds(c, b, "b-1")
	t.holds(c, a, "a-1", "a-2")
}

func messageReopened(t *test) {
	c, q := t.queueOf(t.open(), "m-1", "m-2")
	t.holds(t.reopen(c), q, "m-1", "m-2")
}

func messageIdentity(t *test) {
	c, in, r := t.receiverOf(t.open())
	out, m := t.queue(c, "out"), message("m")
	t.dispatch(c, transport.Operation{Message: m, Queue: in})
	t.do("Retry", t.whole(r, m).Retry)
	t.do("Release", t.whole(r, m).Release)
	d := t.whole(r, m)
	t.dispatch(c, transport.Operation{Message: d.Message(), Queue: out})
	t.complete(d, t.whole(t.receiver(c, out), m))
}

func messageUnnamed(t *test) {
	c, q, r := t.receiverOf(t.open())
	for range 2 {
		t.dispatch(c, transport.Operation{Message: &transport.Message{Body: []byte(`{"order":7}`)}, Queue: q})
	}
	ds := t.take(r, 2)
	seen := map[string]bool{}
	for _, d := range ds {
		m := d.Message()
		id := cmp.Or(m.ID, m.Headers.Get(header.MessageID))
		if id == "" || transport.IsContentID(id) {
			continue
		}
		if seen[id] {
			t.Errorf("both messages have the id %q, which is no content id", id)
		}
		seen[id] = true
	}
	t.complete(ds...)
}

func messageKept(t *test) {
	_, _, r := t.receiverOf(t.open(), ids("m", 40)...)
	first := t.take(r, 20)
	var were []*transport.Message
	for _, d := range first {
		were = append(were, copyOf(d.Message()))
	}
	t.complete(first...)
	t.complete(t.take(r, 20)...)
	for i, d := range first {
		t.sameMessage(d.Message(), were[i])
	}
}

func messageUndecodable(t *test) {
	c := t.open()
	in, out := t.queue(c, "in"), t.queue(c, "errors")
	t.harness.PutUndecodable(t.TB, t.tr, in)
	t.send(c, in, "good")
	ds := t.take(t.receiver(c, in), 2)
	bad := slices.IndexFunc(ds, func(d transport.Delivery) bool { return d.Message().Undecodable != nil })
	if bad < 0 {
		t.Fatal("no delivery is undecodable")
	}
	m := ds[bad].Message()
	if errors.Is(m.Undecodable, transport.ErrLeaseLost) || ds[bad].Attempt().N != 1 {
		t.Errorf("the undecodable message is in its attempt %d: %v", ds[bad].Attempt().N, m.Undecodable)
	}
	if good := ds[1-bad].Message(); good.Undecodable != nil || good.ID != "good" {
		t.Errorf("its neighbour is %q, undecodable: %v", good.ID, good.Undecodable)
	}
	moved := message("moved")
	moved.Body = m.Body
	t.dispatch(c, transport.Operation{Message: moved, Queue: out})
	t.complete(ds...)
	t.empty(c, in)
	t.holds(c, out, "moved")
}

// messageTranslated compares the function of Translation with that of the user by its effects.
func messageTranslated(t *test) {
	if as[transport.Translator](t, t.open()).Translation() != nil {
		t.Error("Translation returns a function, and the user has none")
	}
	var calls atomic.Int32
	translate := func(m *transport.Message) {
		calls.Add(1)
		if m.ID == "odd" {
			panic(errNothing) //nolint:forbidigo // as a function of a user may
		}
		m.ID, m.Body = "translated", []byte("translated")
		m.Headers.Set("Kit.Name", "translated")
	}
	t.tr = t.harness.Translate(t.TB, translate)
	c, in, r := t.receiverOf(t.open())
	out, m := t.queue(c, "out"), message("m")
	t.dispatch(c, transport.Operation{Message: m, Queue: in})
	d := t.whole(r, m)
	got, want := copyOf(m), copyOf(m)
	translated(t, c, got, false)
	translate(want)
	t.sameMessage(got, want)
	translated(t, c, message("odd"), true)
	t.do("Retry", d.Retry)
	d = t.whole(r, m)
	t.dispatch(c, transport.Operation{Message: d.Message(), Queue: out})
	t.complete(d, t.whole(t.receiver(c, out), m))
	if n := calls.Load(); n != 3 {
		t.Errorf("the function was called %d times, want 3: the driver must not call it", n)
	}
}

// translated has the function of a connection change m, as the endpoint does, and checks whether
// the function panics.
func translated(t *test, c transport.Conn, m *transport.Message, panics bool) {
	t.Helper()
	f := as[transport.Translator](t, c).Translation()
	if f == nil {
		t.Fatal("Translation returns no function, and the user has one")
	}
	defer func() {
		if v := recover(); (v != nil) != panics {
			t.Errorf("the function of Translation ends with the panic %v", v)
		}
	}()
	f(m)
}
