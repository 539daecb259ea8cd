package envelope_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/transport"
)

func TestDecodeRefusesEveryCutAndEveryFurtherByte(t *testing.T) {
	whole := envelope.Encode([]transport.Operation{typical(), full()}, now, 0)[0]
	for n := range whole {
		if _, err := envelope.Decode(whole[:n]); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
	for _, more := range []string{"\x00", "\x01", string(whole)} {
		if _, err := envelope.Decode(append(bytes.Clone(whole), more...)); err == nil {
			t.Errorf("%d bytes after the end: no error", len(more))
		}
	}
}

// Each of these is version 1 and the zero time, followed by what Encode never writes.
func TestDecodeRefusesWhatEncodeDoesNotWrite(t *testing.T) {
	const head = "\x01\x00\x00"
	// queue, types, id, headers, native, properties, due, TTL
	const fields = "\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	huge := string(binary.AppendUvarint(nil, 1<<63))
	operation := func(fields string) string { return head + "\x01" + string(rune(len(fields))) + fields + "\x00" }
	if _, err := envelope.Decode([]byte(operation(fields))); err != nil {
		t.Fatalf("the shortest operation: %v", err)
	}
	for name, bad := range map[string]string{
		"nothing":                           "",
		"no operations":                     head + "\x00",
		"more operations than bytes":        head + "\x02\x09" + fields + "\x00",
		"a huge number of operations":       head + huge,
		"fields longer than the rest":       head + "\x01\x7f" + fields + "\x00",
		"huge fields":                       head + "\x01" + huge + fields + "\x00",
		"fields with more at their end":     operation(fields + "\x00"),
		"a body longer than the rest":       head + "\x01\x09" + fields + "\x01",
		"a number that overflows":           head + strings.Repeat("\xff", 10) + "\x01",
		"a number that is not the shortest": head + "\x81\x00\x09" + fields + "\x00",
		"a queue longer than the fields":    operation("\x09" + fields[1:]),
		"more types than bytes":             operation("\x00\x7f" + fields[2:]),
		"more headers than bytes":           operation("\x00\x00\x00\x05" + fields[4:]),
		"two headers with one name":         operation("\x00\x00\x00\x02\x00\x00\x00\x00" + fields[4:]),
		"more properties than bytes":        operation("\x00\x00\x00\x00\x00\x04" + fields[6:]),
		"properties in another order":       operation("\x00\x00\x00\x00\x00\x03\x01b\x00\x01a\x00" + fields[6:]),
		"two properties with one name":      operation("\x00\x00\x00\x00\x00\x03\x01a\x00\x01a\x00" + fields[6:]),
		"a second of nanoseconds":           operation("\x00\x00\x00\x00\x00\x00\x00" + string(binary.AppendUvarint(nil, 1e9)) + "\x00"),
	} {
		if e, err := envelope.Decode([]byte(bad)); err == nil {
			t.Errorf("%s: no error, %+v", name, e)
		}
	}
}

func TestDecodeFindsEqualNamesAmongManyHeaders(t *testing.T) {
	many := typical()
	for i := range 1000 {
		many.Message.Headers.Set(fmt.Sprintf("%06d", i), "")
	}
	b := envelope.Encode([]transport.Operation{many}, now, 0)[0]
	if diff := cmp.Diff([]transport.Operation{many}, decode(t, b).Ops, equal); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	if _, err := envelope.Decode(bytes.Replace(b, []byte("000999"), []byte("000000"), 1)); err == nil {
		t.Error("two headers with one name: no error")
	}
}

// A wrong count costs nothing, and empty values cost as much as their Go values.
func TestHostileCountsAllocateLittle(t *testing.T) {
	const size = 1 << 20
	zeros := make([]byte, size)
	head := []byte{1, 0, 0}
	claim := func(divisor int) []byte { return binary.AppendUvarint(nil, uint64(size/divisor)) }
	operation := func(fields ...[]byte) []byte {
		inner := bytes.Join(fields, nil)
		return bytes.Join([][]byte{head, {1}, binary.AppendUvarint(nil, uint64(len(inner))), inner, {0}}, nil)
	}
	for name, test := range map[string]struct {
		b    []byte
		most int // bytes per byte of the input
	}{
		"operations that are not there":  {bytes.Join([][]byte{head, claim(1), zeros[:size/2]}, nil), 0},
		"operations that are empty":      {bytes.Join([][]byte{head, claim(2), zeros}, nil), 0},
		"operations of the least length": {bytes.Join([][]byte{head, claim(11), bytes.Repeat([]byte("\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00"), size/11), {0}}, nil), 28},
		"types that are not there":       {operation([]byte{0}, claim(1), bytes.Repeat([]byte{1}, size)), 1},
		"types that are empty":           {operation([]byte{0}, claim(1), zeros), 17},
		"headers that are not there":     {operation([]byte{0, 0, 0}, claim(1), zeros), 1},
		"headers that are empty":         {operation([]byte{0, 0, 0}, claim(2), zeros), 25},
		"properties that are not there":  {operation([]byte{0, 0, 0, 0, 0}, claim(1), zeros), 1},
		"a body that is not there":       {bytes.Join([][]byte{head, {1, 9}, make([]byte, 9), claim(1), zeros[:100]}, nil), 0},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := envelope.Decode(test.b)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; err == nil || used > uint64(test.most*size+1<<14) {
			t.Errorf("%s: %v, %d bytes allocated for %d", name, err, used, len(test.b))
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(envelope.Encode([]transport.Operation{typical()}, now, 0)[0])
	f.Add(envelope.Encode([]transport.Operation{full(), full()}, now, 0)[0])
	f.Add([]byte{})
	f.Add([]byte{2, 0})
	f.Add([]byte("\x01\x00\x00\x01\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := envelope.Decode(b)
		if err != nil {
			return
		}
		again := envelope.Encode(e.Ops, e.Encoded, 0)
		if len(again) != 1 || !bytes.Equal(again[0], b) {
			t.Fatalf("%x was decoded and encoded as %x", b, again)
		}
		e.AppendLive(nil, now)
	})
}

func FuzzEncode(f *testing.F) {
	f.Add("sales", "Shop.Order", "id", "A", "1", "B", "2", []byte("body"), int64(0), int64(0), int64(0), uint16(0))
	f.Add("", "\x00", "\xff", "", "\xff", "\x00", "", []byte{0}, int64(-1), int64(1<<62), int64(-1), uint16(40))
	f.Fuzz(func(t *testing.T, queue, name, id, key1, value1, key2, value2 string, body []byte, seconds, after, ttl int64, limit uint16) {
		first := transport.Operation{
			Message: &transport.Message{
				ID: id, Body: body, Headers: header.New(header.Field{Name: key1, Value: value1}, header.Field{Name: key2, Value: value2}),
				Native: map[string]string{key2: value1},
			},
			Queue: queue, TTL: time.Duration(ttl), After: time.Duration(after),
			Properties: map[string]string{key1: value1, key2: value2},
		}
		second := first
		second.Queue, second.Types, second.At = "", []string{name, queue}, time.Unix(seconds%(1<<40), 0)
		want := []transport.Operation{first, second}
		var got []transport.Operation
		for _, b := range envelope.Encode(want, now, int(limit)) {
			got = append(got, decode(t, b).Ops...)
		}
		if after > 0 {
			want[0].At = now.Add(first.After)
		}
		want[0].After, want[1].After = 0, 0
		want[1].At = want[1].At.UTC()
		if diff := cmp.Diff(want, got, equal); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}
