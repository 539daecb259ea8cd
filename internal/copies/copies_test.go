package copies

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/transport"
)

func headers(nameValues ...string) header.Map {
	var h header.Map
	for i := 0; i < len(nameValues); i += 2 {
		h.Set(nameValues[i], nameValues[i+1])
	}
	return h
}

// text is the headers in order.
func text(h header.Map) string {
	var b strings.Builder
	for name, value := range h.All() {
		fmt.Fprintf(&b, "%q: %q\n", name, value)
	}
	return b.String()
}

var (
	long  = strings.Repeat("é", 400)
	fresh = &transport.Message{
		ID: "m-" + long, NativeID: "17", Native: map[string]string{"priority": "3"}, Body: []byte("\x00body"),
		Headers: headers(
			header.MessageID, "m-"+long, header.EnclosedMessageTypes, "Shop.Order", header.CorrelationID, "c\xff", "Tenant", "a\xffb\x00",
			"", "no name", header.ReplyToAddress, "sales", header.Retries, "2",
		),
	}
	failure = headers(
		header.FailedQ, "sales", header.TimeOfFailure, "2026-03-01 12:00:00:000000 Z", header.ExceptionType, "*errors.errorString",
		header.ExceptionMessage, "broken", header.ExceptionStackTrace, "*errors.errorString: broken", header.HoldfastFaultClass, "broken",
		header.ProcessingEndpoint, "Sales", header.HoldfastAttempts, "6", header.HoldfastFaultHistory, strings.Repeat("h", 4000),
	)
)

// taken returns the candidates of a copy with their forms.
func taken(m *transport.Message) (forms []Form, candidates []*transport.Message) {
	for form, c := range ForErrorQueue(m, failure) {
		forms, candidates = append(forms, form), append(candidates, c)
	}
	return forms, candidates
}

func TestCandidatesNeedLessAndLessRoom(t *testing.T) {
	forms, candidates := taken(fresh)
	if diff := cmp.Diff([]Form{Full, Trimmed, Minimal, Minimal, Packed, Packed, Original}, forms); diff != "" {
		t.Fatal(diff)
	}
	for i, c := range candidates {
		packed := forms[i] == Packed
		if _, ok := c.Headers.Lookup("Tenant"); ok == packed {
			t.Errorf("candidate %d: has the received headers: %v", i, ok)
		}
		if c.NativeID != "17" || c.Native["priority"] != "3" || c.Headers.Get(header.Retries) != "" {
			t.Errorf("candidate %d: native %s %v, headers\n%s", i, c.NativeID, c.Native, text(c.Headers))
		}
		if back := forms[i] != Original; (c.Headers.Get(header.FailedQ) == "sales") != back {
			t.Errorf("candidate %d: failed queue %q", i, c.Headers.Get(header.FailedQ))
		}
		if i > 0 && i < 4 && c.Headers.Size() >= candidates[i-1].Headers.Size() {
			t.Errorf("candidate %d is not smaller than the one before", i)
		}
	}
	if inBody := candidates[5]; inBody.Headers.Get(header.HoldfastReceived) != "body" || !bytes.HasSuffix(inBody.Body, fresh.Body) {
		t.Errorf("headers\n%sbody %q", text(inBody.Headers), inBody.Body)
	}
}

// The packed headers are those that ServiceControl needs, and each is short and valid UTF-8.
func TestPackedCandidateIsShort(t *testing.T) {
	m := *fresh
	m.Headers = m.Headers.Clone()
	for _, name := range shown {
		m.Headers.Set(name, "\xff"+strings.Repeat("x", 100_000)+name)
	}
	full := failure.Clone()
	full.Set(header.ExceptionMessage, strings.Repeat("y", 20_000))
	full.Set(header.ExceptionStackTrace, strings.Repeat("z", 20_000))
	for form, c := range ForErrorQueue(&m, full) {
		if form != Packed {
			continue
		}
		for name, value := range c.Headers.All() {
			if name != header.HoldfastReceived && len(value) > 512 || !utf8.ValidString(value) {
				t.Errorf("%s has %d bytes, or is not UTF-8", name, len(value))
			}
		}
		for _, name := range append(shown, header.FailedQ, header.TimeOfFailure, header.ExceptionType, header.ExceptionMessage, header.ExceptionStackTrace) {
			if c.Headers.Get(name) == "" {
				t.Errorf("no header %s", name)
			}
		}
	}
}

func TestPackedCandidatesAreUnpacked(t *testing.T) {
	for form, c := range ForErrorQueue(fresh, failure) {
		if form != Packed {
			continue
		}
		got := Unpacked(c)
		if got.Undecodable != nil || got.ID != fresh.ID || !bytes.Equal(got.Body, fresh.Body) || got.NativeID != "17" {
			t.Fatalf("unpacked %v: id %s, body %q", got.Undecodable, got.ID, got.Body)
		}
		want := fresh.Headers.Clone()
		want.Del(header.Retries)
		for name, value := range c.Headers.All() { // the fault
			if strings.Contains(name, "Exception") || strings.HasPrefix(name, "Holdfast.Fault.") || failure.Get(name) == value {
				want.Set(name, value)
			}
		}
		if diff := cmp.Diff(text(want), text(got.Headers)); diff != "" {
			t.Error(diff)
		}
	}
}

// A tool may change what it is shown of a packed message, and add headers.
func TestChangesOfAPackedMessageAreKept(t *testing.T) {
	_, candidates := taken(fresh)
	c := *candidates[4]
	c.ID, c.Body = "m-2", []byte("edited")
	c.Headers = c.Headers.Clone()
	c.Headers.Set(header.MessageID, "m-2")
	c.Headers.Set(header.RetryUniqueID, "u-1")
	got := Unpacked(&c)
	if got.ID != "m-2" || got.Headers.Get(header.MessageID) != "m-2" || got.Headers.Get(header.RetryUniqueID) != "u-1" ||
		got.Headers.Get("Tenant") != "a\xffb\x00" || string(got.Body) != "edited" {
		t.Errorf("id %s, body %q, headers\n%s", got.ID, got.Body, text(got.Headers))
	}
	if c.Headers.Get(header.HoldfastReceived) == "" {
		t.Error("the packed message is changed")
	}
}

func TestReturnIsWholeOrPacked(t *testing.T) {
	n := 0
	for _, c := range ForReturn(fresh) {
		n++
		got := Unpacked(c)
		if diff := cmp.Diff(text(fresh.Headers), text(got.Headers)); diff != "" || got.ID != fresh.ID || !bytes.Equal(got.Body, fresh.Body) {
			t.Errorf("candidate %d: %s", n, diff)
		}
	}
	if n != 3 {
		t.Errorf("%d candidates, want 3", n)
	}
}

func TestOtherMessagesAreAsTheyWere(t *testing.T) {
	if got := Unpacked(fresh); got != fresh {
		t.Error("a message without the header is another one")
	}
	bad := &transport.Message{Undecodable: errors.New("bad"), Headers: headers(header.HoldfastReceived, "x")}
	if got := Unpacked(bad); got != bad {
		t.Error("an undecodable message is another one")
	}
	if n := testing.AllocsPerRun(10, func() { Unpacked(fresh) }); n > 0 {
		t.Errorf("%v allocations for an ordinary message", n)
	}
}

// Headers that would not be unpacked are not packed.
func TestTooManyHeadersAreNotPacked(t *testing.T) {
	var many header.Map
	many.Reserve(maxHeaders + 1)
	fields := make([]header.Field, maxHeaders+1)
	for i := range fields {
		fields[i] = header.Field{Name: strconv.Itoa(i)}
	}
	many = header.Of(fields)
	for name, h := range map[string]header.Map{"many": many, "large": headers("a", strings.Repeat("x", maxUnpacked/2+1))} {
		if pack(&transport.Message{Headers: h}) != nil {
			t.Errorf("%s: they are packed", name)
		}
	}
	most := &transport.Message{Headers: header.Of(fields[1:])}
	if got := Unpacked(inHeader(most, header.Map{}, pack(most))); got.Undecodable != nil || got.Headers.Len() != maxHeaders {
		t.Errorf("%d headers, %v", got.Headers.Len(), got.Undecodable)
	}
}

// zipped is a gzip file of text.
func zipped(text ...[]byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for _, part := range text {
		_, _ = w.Write(part)
	}
	_ = w.Close()
	return b.Bytes()
}

func inText(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func TestDamagedPackedHeadersAreUndecodable(t *testing.T) {
	good := pack(fresh)
	flipped := bytes.Clone(good)
	flipped[len(flipped)-5] ^= 1 // of the checksum
	two := envelope.Encode([]transport.Operation{{Message: fresh}, {Message: fresh}}, time.Time{}, 1<<20)[0]
	for name, test := range map[string]struct{ value, want string }{
		"nothing":     {"", "EOF"},
		"no base64":   {"*", "base64"},
		"no gzip":     {inText([]byte("0123456789")), "gzip"},
		"cut":         {inText(good[:len(good)/2]), "EOF"},
		"flipped":     {inText(flipped), "checksum"},
		"more behind": {inText(append(bytes.Clone(good), good...)), "behind"},
		"no envelope": {inText(zipped([]byte("hello"))), "damaged"},
		"two":         {inText(zipped(two)), "more than"},
		"a bomb":      {inText(zipped(make([]byte, 64<<20))), "larger than"},
		"no body":     {"body", "EOF"},
	} {
		m := &transport.Message{ID: "m", Headers: headers(header.HoldfastReceived, test.value, "Tenant", "t")}
		got := Unpacked(m)
		if got.Undecodable == nil || !strings.Contains(got.Undecodable.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, got.Undecodable, test.want)
		}
		if got.ID != "m" || got.Headers.Get("Tenant") != "t" || m.Undecodable != nil {
			t.Errorf("%s: the message is changed", name)
		}
	}
}

func TestRefusalsOfMessagesAndQueues(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("nack"), false},
		{&transport.TooLargeError{What: "headers"}, true},
		{&transport.TooLargeError{What: "header count"}, true},
		{fmt.Errorf("text: %w", transport.ErrContent), true},
		{transport.FailAll(1, transport.ErrContent), true},
		{transport.ErrNoQueue, false},
		{transport.ErrDenied, false},
		{transport.ErrFull, false},
		{&transport.BusyError{}, false},
		{fmt.Errorf("%w: %w", transport.ErrTooLarge, transport.ErrOutcomeUnknown), false},
	} {
		if got := OfMessage(test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}

// Whatever a sender writes into the header, unpacking ends, uses memory within a bound, and is
// undone by packing.
func FuzzUnpacked(f *testing.F) {
	good := pack(fresh)
	f.Add(inText(good), []byte("b"))
	f.Add("body", append(bytes.Clone(good), "body"...))
	f.Add("body", good[:20])
	f.Add(inText(zipped(make([]byte, maxUnpacked+1))), []byte{})
	f.Add(inText(zipped([]byte{1, 0, 0, 1, 255, 255, 3})), []byte{})
	f.Add("", []byte(nil))
	f.Fuzz(func(t *testing.T, value string, body []byte) {
		m := &transport.Message{ID: "m", Headers: headers(header.MessageID, "m", header.HoldfastReceived, value), Body: body}
		got := Unpacked(m)
		if got.Undecodable != nil {
			if got.Headers.Get(header.HoldfastReceived) != value || !bytes.Equal(got.Body, body) {
				t.Fatal("an undecodable message lost a part")
			}
			return
		}
		if got.Headers.Len() > maxHeaders+1 || got.Headers.Size() > maxUnpacked+100 {
			t.Fatalf("%d headers of %d bytes", got.Headers.Len(), got.Headers.Size())
		}
		packed := pack(got)
		if packed == nil {
			return
		}
		again := Unpacked(inHeader(got, header.Map{}, packed))
		if again.Undecodable != nil || text(again.Headers) != text(got.Headers) || again.ID != got.ID {
			t.Fatalf("packed again: %v", again.Undecodable)
		}
	})
}
