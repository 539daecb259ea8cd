package envelope_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/transport"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 123456789, time.UTC)

// equal compares operations as drivers read them: no body is an empty one, and headers are compared
// in their order.
var equal = cmp.Options{
	cmp.Transformer("fields", func(m header.Map) []header.Field {
		var fields []header.Field
		for name, value := range m.All() {
			fields = append(fields, header.Field{Name: name, Value: value})
		}
		return fields
	}),
	cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Body" || p.Last().String() == ".Types" }, cmpopts.EquateEmpty()),
}

// typical is a send as an endpoint makes it.
func typical() transport.Operation {
	m := &transport.Message{ID: "0199a1b2-0000-7000-8000-000000000001", Body: []byte(`{"OrderID":"4711"}`)}
	m.Headers.Set(header.MessageID, m.ID)
	m.Headers.Set("NServiceBus.MessageIntent", "Send")
	m.Headers.Set("NServiceBus.ContentType", "application/json")
	m.Headers.Set("NServiceBus.EnclosedMessageTypes", "Shop.PlaceOrder")
	for _, name := range []string{"A", "B", "C", "D", "E", "F", "G", "H"} {
		m.Headers.Set("Shop."+name, strings.Repeat(name, 20))
	}
	return transport.Operation{Message: m, Queue: "sales"}
}

// full uses every field that is encoded.
func full() transport.Operation {
	return transport.Operation{
		Message: &transport.Message{
			ID: "id\x00\xff", Headers: header.New(header.Field{Name: "B\x00", Value: "\xff\xfe"}, header.Field{}, header.Field{Name: "A", Value: "1"}),
			Body: []byte("body\x00\xff"), Native: map[string]string{"session": "7", "": "", "a": "\x00"},
		},
		Types:      []string{"Shop.OrderPlaced", "Shop.Event", ""},
		At:         time.Date(2026, 11, 24, 0, 0, 0, 1, time.UTC),
		TTL:        90 * time.Minute,
		Properties: map[string]string{"z": "1", "b": "2", "a": "3"},
	}
}

func decode(t testing.TB, b []byte) *envelope.Envelope {
	t.Helper()
	e, err := envelope.Decode(b)
	if err != nil {
		t.Fatalf("Decode of %x: %v", b, err)
	}
	return e
}

func TestDecodeReturnsWhatWasEncoded(t *testing.T) {
	empty := transport.Operation{Message: &transport.Message{}}
	bounds := full()
	bounds.TTL = math.MaxInt64
	bounds.At = time.Date(-44, 3, 15, 0, 0, 0, 0, time.UTC)
	past := full()
	past.TTL = math.MinInt64
	past.At = time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)
	odd := empty
	odd.Properties = map[string]string{}
	ops := []transport.Operation{typical(), full(), empty, bounds, past, odd}

	envelopes := envelope.Encode(ops, now, 0)
	if len(envelopes) != 1 {
		t.Fatalf("%d envelopes, want 1", len(envelopes))
	}
	got := decode(t, envelopes[0])
	if diff := cmp.Diff(ops, got.Ops, equal); diff != "" || !got.Encoded.Equal(now) {
		t.Errorf("encoded at %v, operations (-want +got):\n%s", got.Encoded, diff)
	}
	if len(envelopes[0]) != cap(envelopes[0]) {
		t.Errorf("the buffer has room for %d bytes, %d were used", cap(envelopes[0]), len(envelopes[0]))
	}
}

func TestDecodeReturnsWhatWasEncodedOfRandomOperations(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		ops := make([]transport.Operation, 1+r.IntN(5))
		for i := range ops {
			ops[i] = random(r)
		}
		limit := r.IntN(6000)
		var got []transport.Operation
		for _, b := range envelope.Encode(ops, now, limit) {
			e := decode(t, b)
			if len(e.Ops) > 1 && limit > 0 && len(b) > limit {
				t.Fatalf("seed %d: %d operations in %d bytes, the limit is %d", seed, len(e.Ops), len(b), limit)
			}
			got = append(got, e.Ops...)
		}
		if diff := cmp.Diff(ops, got, equal); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
}

func random(r *rand.Rand) transport.Operation {
	text := func() string {
		b := make([]byte, r.IntN(1+r.IntN(200)))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return string(b)
	}
	pairs := func() map[string]string {
		if r.IntN(2) == 0 {
			return nil
		}
		m := map[string]string{}
		for range r.IntN(5) {
			m[text()] = text()
		}
		return m
	}
	op := transport.Operation{
		Message: &transport.Message{ID: text(), Body: []byte(text()), Native: pairs()},
		Queue:   text(), Properties: pairs(), TTL: time.Duration(r.Uint64()),
	}
	for range r.IntN(40) {
		op.Message.Headers.Set(text(), text())
	}
	for range r.IntN(4) {
		op.Types = append(op.Types, text())
	}
	if r.IntN(2) == 0 {
		op.At = time.Unix(r.Int64N(1<<40)-1<<39, r.Int64N(1e9)).UTC()
	}
	return op
}

func TestEncodeTurnsADelayIntoADueTime(t *testing.T) {
	at := now.Add(time.Hour).In(time.FixedZone("UTC+5", 5*3600))
	for _, test := range []struct {
		name      string
		op        transport.Operation
		want      time.Time
		wantDelay bool
	}{
		{"none", transport.Operation{}, time.Time{}, false},
		{"After", transport.Operation{After: time.Minute}, now.Add(time.Minute), true},
		{"a negative After", transport.Operation{After: -time.Minute}, time.Time{}, false},
		{"At", transport.Operation{At: at}, at, true},
		{"At overrides After", transport.Operation{At: at, After: time.Minute}, at, true},
		{"the longest After", transport.Operation{After: math.MaxInt64}, now.Add(math.MaxInt64), true},
	} {
		test.op.Message = &transport.Message{}
		got := decode(t, envelope.Encode([]transport.Operation{test.op}, now, 0)[0]).Ops[0]
		if !got.At.Equal(test.want) || got.After != 0 || got.Delay(now) > 0 != test.wantDelay {
			t.Errorf("%s: At %v and After %v, want At %v and no After", test.name, got.At, got.After, test.want)
		}
	}
}

func TestAppendLiveLeavesTheRestOfEachTTL(t *testing.T) {
	for _, test := range []struct {
		name string
		op   transport.Operation
		at   time.Duration // after the encoding
		want time.Duration // 0: it is gone
	}{
		{"at once", transport.Operation{TTL: time.Minute}, 0, time.Minute},
		{"later", transport.Operation{TTL: time.Minute}, 40 * time.Second, 20 * time.Second},
		{"expired", transport.Operation{TTL: time.Minute}, time.Minute, 0},
		{"not due yet", transport.Operation{TTL: time.Minute, After: time.Hour}, 30 * time.Minute, time.Minute},
		{"due", transport.Operation{TTL: time.Minute, After: time.Hour}, time.Hour + 20*time.Second, 40 * time.Second},
		{"due and expired", transport.Operation{TTL: time.Minute, After: time.Hour}, 2 * time.Hour, 0},
		{"due before it was encoded", transport.Operation{TTL: time.Minute, At: now.Add(-time.Hour)}, 20 * time.Second, 40 * time.Second},
		{"a clock that is behind", transport.Operation{TTL: time.Minute}, -time.Hour, time.Minute},
		{"the longest", transport.Operation{TTL: math.MaxInt64, After: math.MaxInt64}, 0, math.MaxInt64},
		{"negative", transport.Operation{TTL: -1}, -time.Hour, 0},
	} {
		test.op.Message = &transport.Message{}
		kept := transport.Operation{Message: &transport.Message{}, Queue: "kept"}
		e := decode(t, envelope.Encode([]transport.Operation{test.op, kept}, now, 0)[0])
		var got time.Duration
		live := e.AppendLive(nil, now.Add(test.at))
		if len(live) == 2 {
			got = live[0].TTL
		}
		if last := live[len(live)-1]; got != test.want || last.Queue != "kept" || last.TTL != 0 {
			t.Errorf("%s: %d operations, TTL %v, want %v", test.name, len(live), got, test.want)
		}
		if ttl := e.Ops[0].TTL; ttl != test.op.TTL {
			t.Errorf("%s: AppendLive changed the envelope: TTL %v", test.name, ttl)
		}
	}
}

func TestEnvelopesAreSplitBetweenOperations(t *testing.T) {
	small := func() transport.Operation { return typical() }
	large := typical()
	large.Message.Body = make([]byte, 10_000)
	one := len(envelope.Encode([]transport.Operation{small()}, now, 0)[0])
	two := len(envelope.Encode([]transport.Operation{small(), small()}, now, 0)[0])
	for _, test := range []struct {
		name  string
		ops   []transport.Operation
		limit int
		want  []int // operations in each
	}{
		{"none", nil, 100, nil},
		{"no limit", []transport.Operation{small(), large, small()}, 0, []int{3}},
		{"exactly two", []transport.Operation{small(), small(), small()}, two, []int{2, 1}},
		{"a byte less than two", []transport.Operation{small(), small(), small()}, two - 1, []int{1, 1, 1}},
		{"each too large", []transport.Operation{small(), small()}, one - 1, []int{1, 1}},
		{"one too large", []transport.Operation{small(), large, small(), small()}, two, []int{1, 1, 2}},
	} {
		var got []int
		for _, b := range envelope.Encode(test.ops, now, test.limit) {
			got = append(got, len(decode(t, b).Ops))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestEqualOperationsAreEqualBytes(t *testing.T) {
	want := envelope.Encode([]transport.Operation{full()}, now, 0)
	for range 20 {
		if got := envelope.Encode([]transport.Operation{full()}, now, 0); !bytes.Equal(got[0], want[0]) {
			t.Fatalf("%x\n%x", got[0], want[0])
		}
	}
}

// Version 1 is in databases. A change of it needs another version, and Decode must go on reading
// this one.
func TestVersion1StaysAsItIs(t *testing.T) {
	text, err := os.ReadFile("testdata/version1.hex")
	if err != nil {
		t.Fatal(err)
	}
	golden, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	ops := []transport.Operation{typical(), full()}
	if got := envelope.Encode(ops, now, 0)[0]; !bytes.Equal(got, golden) {
		t.Errorf("Encode returned\n%x\nwant\n%x", got, golden)
	}
	e := decode(t, golden)
	if diff := cmp.Diff(ops, e.Ops, equal); diff != "" || !e.Encoded.Equal(now) {
		t.Errorf("encoded at %v, operations (-want +got):\n%s", e.Encoded, diff)
	}
}

func TestAnotherVersionIsAVersionError(t *testing.T) {
	for _, b := range [][]byte{{2}, {3, 1, 2, 3}, {15, 0, 0, 0}} {
		_, err := envelope.Decode(b)
		var version *envelope.VersionError
		if !errors.As(err, &version) || version.Version != b[0] {
			t.Errorf("Decode of %x: %v, want a VersionError with %d", b, err, b[0])
		}
	}
}

// No value of the first byte makes a damaged envelope one of another version.
func TestADamagedFirstByteIsNoVersion(t *testing.T) {
	b := envelope.Encode([]transport.Operation{typical(), full()}, now, 0)[0]
	for first := range 256 {
		if first == 1 {
			continue
		}
		b[0] = byte(first)
		_, err := envelope.Decode(b)
		var version *envelope.VersionError
		if err == nil || errors.As(err, &version) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("the first byte %d: %v", first, err)
		}
	}
}

func TestBodiesShareTheMemoryOfTheEnvelope(t *testing.T) {
	ops := []transport.Operation{typical(), typical()}
	b := envelope.Encode(ops, now, 0)[0]
	e := decode(t, b)
	_ = append(e.Ops[0].Message.Body, "over the end"...)
	if diff := cmp.Diff(ops, decode(t, b).Ops, equal); diff != "" {
		t.Errorf("appending to a body changed what follows it (-want +got):\n%s", diff)
	}
	if n := testing.AllocsPerRun(100, func() { decode(t, b) }); n > 8 {
		t.Errorf("%v allocations for two operations, want at most 8", n)
	}
	if n := testing.AllocsPerRun(100, func() { envelope.Encode(ops, now, 0) }); n > 2 {
		t.Errorf("Encode makes %v allocations, want 2", n)
	}
}

func BenchmarkEncode(b *testing.B) {
	ops := []transport.Operation{typical(), typical()}
	b.ReportAllocs()
	for b.Loop() {
		envelope.Encode(ops, now, 1<<20)
	}
}

func BenchmarkDecode(b *testing.B) {
	encoded := envelope.Encode([]transport.Operation{typical(), typical()}, now, 1<<20)[0]
	b.ReportAllocs()
	for b.Loop() {
		decode(b, encoded)
	}
}
