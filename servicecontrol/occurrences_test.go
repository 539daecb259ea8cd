package servicecontrol

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// The bytes are composed by hand from the description of the format.
func TestValuesHaveTheBytesThatMonitoringReads(t *testing.T) {
	var s series
	at := time.Date(2026, 1, 2, 3, 4, 5, 99, time.FixedZone("", 0))
	s.add(at.Add(1500*time.Millisecond), 3, "")             // 15,000,000 ticks after the first
	s.add(at, 258, "Shop.Größe")                            // the first: values are sorted
	s.add(at.Add(time.Duration(math.MaxInt32)*100), -1, "") // the last tick of the message
	all := s.take()
	if len(all) != 1 {
		t.Fatalf("%d messages", len(all))
	}
	want := strings.Join([]string{
		"0100000000000000",     // version 1
		"8000b796ab49de08",     // 639,029,198,450,000,000 ticks: 2026-01-02 03:04:05 UTC
		"02000000",             // two tags
		"01000000", "0c000000", // key 1, 12 bytes
		"53686f702e4772c3b6c39f65", // Shop.Größe
		"02000000", "00000000",     // key 2, no bytes
		"03000000",                                 // three values
		"00000000", "01000000", "0201000000000000", // at the base, key 1, 258
		"c0e1e400", "02000000", "0300000000000000", // 15,000,000 ticks later, key 2, 3
		"ffffff7f", "02000000", "ffffffffffffffff", // 214 s later, key 2, -1
	}, "")
	if diff := cmp.Diff(want, hex.EncodeToString(encode(all[0]))); diff != "" {
		t.Error(diff)
	}
}

// occurrence is a value as a reader of the format sees it.
type occurrence struct {
	At    int64
	Value int64
	Tag   string
}

// decode reads a body by the description of the format, independently of encode.
func decode(body []byte) (all []occurrence, err error) {
	r := bytes.NewReader(body)
	number := func(into any) {
		if err == nil {
			err = binary.Read(r, binary.LittleEndian, into)
		}
	}
	var version, base int64
	var count, key, length, offset int32
	number(&version)
	number(&base)
	number(&count)
	if err != nil || version != 1 || base < 0 || count < 0 {
		return nil, fmt.Errorf("head of version %d, base %d, %d tags: %w", version, base, count, err)
	}
	tags := map[int32]string{}
	for range count {
		number(&key)
		number(&length)
		if err != nil || key <= 0 || length < 0 || int(length) > r.Len() {
			return nil, fmt.Errorf("tag %d of %d bytes: %w", key, length, err)
		}
		text := make([]byte, length)
		number(text)
		if _, twice := tags[key]; twice || !utf8.Valid(text) {
			return nil, fmt.Errorf("tag %d is %q, or there twice", key, text)
		}
		tags[key] = string(text)
	}
	number(&count)
	for range count {
		var v int64
		number(&offset)
		number(&key)
		number(&v)
		tag, known := tags[key]
		if err != nil || !known || offset < 0 {
			return nil, fmt.Errorf("value after %d ticks with key %d: %w", offset, key, err)
		}
		all = append(all, occurrence{base + int64(offset), v, tag})
	}
	if err == nil && r.Len() > 0 {
		err = errors.New("bytes after the end")
	}
	return all, err
}

// decodeAll reads bodies, and checks what each message must keep to.
func decodeAll(t *testing.T, batches [][]value) (all []occurrence) {
	t.Helper()
	for _, batch := range batches {
		body := encode(batch)
		values, err := decode(body)
		if err != nil {
			t.Fatalf("a message cannot be read: %v", err)
		}
		sorted := slices.IsSortedFunc(values, func(a, b occurrence) int { return int(min(1, max(-1, a.At-b.At))) })
		if len(values) == 0 || len(values) > 2048 || !sorted || len(body) > 120_000 {
			t.Fatalf("a message of %d bytes has %d values, sorted: %v", len(body), len(values), sorted)
		}
		all = append(all, values...)
	}
	return all
}

func TestAMessageHasAtMost2048Values(t *testing.T) {
	for n, want := range map[int][]int{
		0: nil, 1: {1}, 2047: {2047}, 2048: {2048}, 2049: {2048, 1}, 3 * 2048: {2048, 2048, 2048},
	} {
		var s series
		for i := range n {
			s.add(time.Unix(1_800_000_000, 0), int64(i), "a")
		}
		var got []int
		taken := s.take()
		for _, b := range taken {
			got = append(got, len(b))
		}
		if diff := cmp.Diff(want, got); diff != "" || len(decodeAll(t, taken)) != n {
			t.Errorf("%d values: %s", n, diff)
		}
	}
}

func TestAMessageSpansNoMoreThanItsOffsetsCan(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	const span = math.MaxInt32 * 100 * time.Nanosecond // 214.7 s
	for name, c := range map[string]struct {
		times []time.Duration
		want  int
	}{
		"the longest span":           {[]time.Duration{0, span}, 1},
		"a tick more":                {[]time.Duration{0, span + 100}, 2},
		"a clock that jumps back":    {[]time.Duration{0, -time.Hour, time.Second, -time.Hour + 1}, 2},
		"each an hour apart":         {[]time.Duration{0, time.Hour, 2 * time.Hour}, 3},
		"a clock of a century later": {[]time.Duration{0, 100 * 365 * 24 * time.Hour}, 2},
	} {
		var s series
		for i, d := range c.times {
			s.add(at.Add(d), int64(i), name)
		}
		batches := s.take()
		if all := decodeAll(t, batches); len(batches) != c.want || len(all) != len(c.times) {
			t.Errorf("%s: %d values in %d messages, want %d messages", name, len(all), len(batches), c.want)
		}
	}
}

func TestTicksStayInTheYearsThatDotNetKnows(t *testing.T) {
	for _, c := range []struct {
		at   time.Time
		want int64
	}{
		{time.Time{}, 0},
		{time.Unix(0, 0), 621355968000000000},
		{time.Unix(0, -1), 621355967999999999},
		{time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC), 3155378975999999999},
		{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), 3155378975999999999},
		{time.Date(-44, 3, 15, 0, 0, 0, 0, time.UTC), 0},
		{time.Unix(math.MaxInt64/2, 0), 3155378975999999999},
		{time.Unix(math.MinInt64/2, 0), 0},
	} {
		if got := ticks(c.at); got != c.want {
			t.Errorf("%v: %d ticks, want %d", c.at, got, c.want)
		}
	}
}

// A tag comes from a header, so it may be any text.
func TestTagsOfAnyTextStayReadableAndSmall(t *testing.T) {
	var s series
	at := time.Unix(1_800_000_000, 0)
	long := strings.Repeat("ü", 10_000)
	for i := range 2048 {
		s.add(at, 1, fmt.Sprintf("%04d%s", i, long))
	}
	s.add(at, 1, "\xff\xfeShop\x80")
	s.add(at, 1, "注文.確定 😀")
	s.add(at, 1, "a\x00b")
	all := decodeAll(t, s.take())
	if len(all) != 2051 || all[2048].Tag != "Shop" || all[2049].Tag != "注文.確定 😀" || all[2050].Tag != "a\x00b" {
		t.Errorf("%d values, the last %+v", len(all), all[len(all)-3:])
	}
	if tag := all[0].Tag; len(tag) > 512 || !strings.HasPrefix(tag, "0000ü") || strings.Trim(tag, "0ü") != "" {
		t.Errorf("a long tag is %q", tag)
	}
}

// Whatever is measured, an independent reader gets it back: each value once, with its time and tag.
func FuzzValues(f *testing.F) {
	f.Add(uint64(1), 10, "Shop.PlaceOrder", int64(1_800_000_000), int64(7))
	f.Add(uint64(2), 5000, "", int64(-62135596801), int64(-1))
	f.Add(uint64(3), 2048, "\xff", int64(math.MaxInt64), int64(math.MinInt64))
	f.Add(uint64(4), 100, "ü😀", int64(253402300799), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, seed uint64, n int, tag string, seconds, n64 int64) {
		n = max(0, n%6000)
		r := rand.New(rand.NewPCG(seed, 0))
		spans := []int64{1, 200, 1000, 100_000}
		span := spans[r.IntN(len(spans))]
		var s series
		want := map[occurrence]int{}
		for i := range n {
			at := time.Unix(seconds, 0).Add(time.Duration(r.Int64N(span * int64(time.Second))))
			v, text := n64+int64(i%3), fmt.Sprint(tag, r.IntN(3))
			s.add(at, v, text)
			want[occurrence{ticks(at), v, cut(text, maxTag)}]++
		}
		for _, o := range decodeAll(t, s.take()) {
			want[o]--
		}
		for o, n := range want {
			if n != 0 {
				t.Fatalf("%+v is there %d times too seldom", o, n)
			}
		}
	})
}
