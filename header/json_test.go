package header_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
)

func TestHeadersAreWrittenAsOneObjectInOrder(t *testing.T) {
	for _, test := range []struct {
		want string
		in   fields
	}{
		{`{}`, nil},
		{`{"A":""}`, fields{{"A", ""}}},
		{`{"B":"1","A":"2"}`, fields{{"B", "1"}, {"A", "2"}}},
		{`{"":"\"\\/\n\r\t\u0000\u001f\u007f"}`, fields{{"", "\"\\/\n\r\t\x00\x1f\x7f"}}},
		{`{"é":"€ 😀 <&>"}`, fields{{"é", "€ 😀 <&>"}}},
		{`{"A":"x\ufffd\ufffdy\ufffd\ufffd"}`, fields{{"A", "x\xff\xfey\xe2\x82"}}},
	} {
		want := strings.ReplaceAll(test.want, `\u007f`, "\x7f")
		m := header.New(test.in...)
		if got := string(m.AppendJSON([]byte("x"))); got != "x"+want {
			t.Errorf("AppendJSON = %s, want %s", got, want)
		}
		got, err := json.Marshal(struct{ H header.Map }{m})
		if err != nil || !json.Valid(got) {
			t.Errorf("json.Marshal = %s, %v", got, err)
		}
	}
}

func TestMoreHeadersThanAMapIsForAreRefused(t *testing.T) {
	object := func(n int, name func(i int) string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"%s":""`, name(i))
		}
		return "{" + strings.TrimPrefix(b.String(), ",") + "}"
	}
	distinct, same := func(i int) string { return fmt.Sprint(i) }, func(int) string { return "same" }
	if m, err := header.ParseJSON(object(header.MaxCount, distinct)); err != nil || m.Len() != header.MaxCount {
		t.Errorf("%d headers: %d were read, %v", header.MaxCount, m.Len(), err)
	}
	for _, name := range []func(int) string{distinct, same} {
		if m, err := header.ParseJSON(object(header.MaxCount+1, name)); err == nil {
			t.Errorf("%d of %d headers were read", m.Len(), header.MaxCount+1)
		}
	}
}

func TestHeadersAreReadInOrder(t *testing.T) {
	for _, test := range []struct {
		name, in string
		want     fields
	}{
		{"empty", `{}`, nil},
		{"spaces", " \t\r\n{ \n\"A\" :\t\"1\" , \"B\":\"2\"\r} ", fields{{"A", "1"}, {"B", "2"}}},
		{"spaces in an empty one", ` { } `, nil},
		{"the last of a name", `{"A":"1","B":"2","A":"3"}`, fields{{"A", "3"}, {"B", "2"}}},
		{"escapes", `{"\u0041":"\"\\\/\b\f\n\r\t\u20ac\ud83d\ude00"}`, fields{{"A", "\"\\/\b\f\n\r\t€😀"}}},
		{"half a pair", `{"A":"\ud83d"}`, fields{{"A", "\ufffd"}}},
		{"not UTF-8", "{\"A\":\"x\xff\"}", fields{{"A", "x\ufffd"}}},
		{"other values", `{"I":1,"N":-2.5e+3 ,"T":true,"F":false,"Z":null}`, fields{{"I", "1"}, {"N", "-2.5e+3"}, {"T", "true"}, {"F", "false"}, {"Z", ""}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := header.ParseJSON(test.in)
			if err != nil {
				t.Fatal(err)
			}
			same(t, m, test.want...)
			var again header.Map
			if err := json.Unmarshal([]byte(test.in), &again); err != nil {
				t.Fatal(err)
			}
			same(t, again, test.want...)
		})
	}
}

func TestOtherJSONIsRefused(t *testing.T) {
	for _, s := range []string{
		"", " ", "null", "[]", `"A"`, "1", "{", "}", "{}}", "{} x",
		`{A:"1"}`, `{"A"}`, `{"A":}`, `{"A" "1"}`, `{"A":"1"`, `{"A":"1",}`, `{"A":"1" "B":"2"}`, `{,}`,
		`{"A":{}}`, `{"A":[]}`, `{"A":["1"]}`, `{"A":{"B":"1"}}`, `{1:"A"}`, `{"A":1`,
		`{"A":01}`, `{"A":tru}`, `{"A":nul}`, `{"A":x}`, `{"A":1 2}`,
		`{"A":"\x"}`, `{"A":"\u12"}`, "{\"A\":\"\n\"}", `{"A":"1}`, `{"A":"\`, `{"A":"\"}`,
	} {
		m, err := header.ParseJSON(s)
		if err == nil {
			t.Errorf("ParseJSON(%q) = %v, want an error", s, listed(m))
		}
	}
}

func TestAFailedUnmarshalLeavesTheMapAlone(t *testing.T) {
	m := header.New(fields{{"A", "1"}}...)
	if err := m.UnmarshalJSON([]byte(`{"A":"2",`)); err == nil {
		t.Fatal("no error")
	}
	same(t, m, fields{{"A", "1"}}...)
}

// ParseJSON accepts no more than encoding/json, with the same result; of objects without
// objects or arrays, both accept the same.
func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"A":"1","B":"2"}`, `{"A":1.5e9,"B":true,"C":null}`, `{"A":"\ud83d\ude00\u0041\n"}`, "{\"A\":\"\xff\"}",
		`{"A":"1","A":"2"}`, `{"A":[1]}`, ` { "A" : "1" } `, `{"\"":"\\"}`, `{"A":"\`, `[`, `{"a":-}`, `{"a":00}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := header.ParseJSON(s)
		var values map[string]any
		decoder := json.NewDecoder(strings.NewReader(s))
		decoder.UseNumber()
		ours, theirs := err == nil, json.Valid([]byte(s)) && decoder.Decode(&values) == nil && values != nil && flat(values)
		if ours != theirs {
			t.Fatalf("ParseJSON(%q): %v; encoding/json takes it: %v", s, err, theirs)
		}
		if !ours {
			return
		}
		want := map[string]string{}
		for name, v := range values {
			want[name] = text(v)
		}
		if diff := cmp.Diff(want, maps.Collect(m.All())); diff != "" {
			t.Errorf("ParseJSON(%q) (-encoding/json +ours):\n%s", s, diff)
		}
	})
}

func flat(values map[string]any) bool {
	for _, v := range values {
		switch v.(type) {
		case map[string]any, []any:
			return false
		}
	}
	return true
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// AppendJSON writes the same as encoding/json, and both parse it.
func FuzzAppendJSON(f *testing.F) {
	f.Add("A", "1", "B", "2")
	f.Add("", "\x00\"\\\n\u2028", "é", "\xff\xc0€\xe2\x82")
	f.Add("A", "\x7f/<>&", "A", "\ufffd")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		m := header.New(fields{{name1, value1}, {name2, value2}}...)
		written := m.AppendJSON(nil)
		want := map[string]string{}
		for name, value := range m.All() {
			want[valid(name)] = valid(value)
		}
		var theirs map[string]string
		if err := json.Unmarshal(written, &theirs); err != nil {
			t.Fatalf("encoding/json does not read %s: %v", written, err)
		}
		if diff := cmp.Diff(want, theirs); diff != "" {
			t.Errorf("encoding/json reads %s (-want +got):\n%s", written, diff)
		}
		back, err := header.ParseJSON(string(written))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, maps.Collect(back.All())); diff != "" {
			t.Errorf("ParseJSON reads %s (-want +got):\n%s", written, diff)
		}
	})
}

// valid is s with a U+FFFD for each byte that is not UTF-8, as encoding/json has it.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String()
}

func BenchmarkAppendJSON(b *testing.B) {
	m := sample()
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = m.AppendJSON(buf[:0])
	}
	b.SetBytes(int64(len(buf)))
}

// A buffer that is too small grows once.
func BenchmarkAppendJSONToNothing(b *testing.B) {
	m := sample()
	b.ReportAllocs()
	for b.Loop() {
		_ = m.AppendJSON(nil)
	}
}

func BenchmarkParseJSON(b *testing.B) {
	s := string(sample().AppendJSON(nil))
	b.SetBytes(int64(len(s)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := header.ParseJSON(s); err != nil {
			b.Fatal(err)
		}
	}
}
