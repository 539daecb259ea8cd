package serialization_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/serialization"
)

type order struct {
	ID     string            `json:"id"`
	Amount float64           `json:"amount"`
	Placed time.Time         `json:"placed"`
	Lines  []string          `json:"lines,omitempty"`
	Extra  map[string]string `json:"extra,omitempty"`
	Raw    json.RawMessage   `json:"raw,omitempty"`
	Blob   []byte            `json:"blob,omitempty"`
}

func TestJSONGivesBackWhatWasWritten(t *testing.T) {
	tests := map[string]order{
		"zero": {},
		"full": {
			ID: "日本 \"quoted\" <b>&\u2028", Amount: 12.5, Placed: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC),
			Lines: []string{"", "a"}, Extra: map[string]string{"k": "v"}, Raw: json.RawMessage(`{"x":[1,2]}`), Blob: []byte{0, 255},
		},
		"extremes": {Amount: math.MaxFloat64, Lines: []string{strings.Repeat("x", 1<<20)}},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			body, err := serialization.JSON.Marshal(&want)
			if err != nil {
				t.Fatal(err)
			}
			var got order
			if err := serialization.JSON.Unmarshal(body, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestJSONOfAStructAndOfAPointerAreTheSame(t *testing.T) {
	o := order{ID: "1"}
	value, err := serialization.JSON.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	pointer, err := serialization.JSON.Marshal(&o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(value), string(pointer)); diff != "" {
		t.Error(diff)
	}
}

// Methods of a pointer encode values that are passed without one.
func TestJSONOfPointerMethodsNeedsNoPointer(t *testing.T) {
	type invoice struct {
		Total big.Int
		Parts [1]big.Int
	}
	in := invoice{Total: *big.NewInt(1 << 60), Parts: [1]big.Int{*big.NewInt(7)}}
	for range 2 {
		body, err := serialization.JSON.Marshal(in)
		if want := `{"Total":1152921504606846976,"Parts":[7]}`; err != nil || string(body) != want {
			t.Errorf("%s, %v; want %s", body, err, want)
		}
	}
}

func TestJSONContentType(t *testing.T) {
	if got := serialization.JSON.ContentType(); got != "application/json" {
		t.Errorf("content type %q", got)
	}
}

func TestJSONBodiesBelongToTheCaller(t *testing.T) {
	first, err := serialization.JSON.Marshal(order{ID: "first"})
	if err != nil {
		t.Fatal(err)
	}
	kept := string(first)
	for range 10 {
		other, err := serialization.JSON.Marshal(order{ID: "other"})
		if err != nil {
			t.Fatal(err)
		}
		clear(other)
	}
	if string(first) != kept {
		t.Errorf("a body changed under its owner: %q", first)
	}
}

func TestJSONKeepsNoBody(t *testing.T) {
	body := []byte(`{"id":"one","lines":["two"],"extra":{"three":"four"},"raw":{"five":6},"blob":"AAE="}`)
	want := order{
		ID: "one", Lines: []string{"two"}, Extra: map[string]string{"three": "four"},
		Raw: json.RawMessage(`{"five":6}`), Blob: []byte{0, 1},
	}
	var got order
	if err := serialization.JSON.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	for i := range body {
		body[i] = 'x'
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestJSONReadsOneByteOrderMark(t *testing.T) {
	const bom = "\xef\xbb\xbf"
	body := []byte(bom + `{"id":"1"}`)
	var got order
	if err := serialization.JSON.Unmarshal(body, &got); err != nil || got.ID != "1" {
		t.Errorf("got %+v and %v", got, err)
	}
	if string(body) != bom+`{"id":"1"}` {
		t.Errorf("the body was changed: %q", body)
	}
	for _, bad := range []string{bom, bom + bom + `{}`, `{}` + bom, "\xff\xfe{\x00}\x00"} {
		if err := serialization.JSON.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestJSONIgnoresWhatItDoesNotKnow(t *testing.T) {
	var got order
	body := `{"$type":"Shop.Order, Shop","ID":"by another case","unknown":{"a":[1]}}`
	if err := serialization.JSON.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(order{ID: "by another case"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestJSONDecodeErrorsNameTheTypeAndKeepTheCause(t *testing.T) {
	const secret = "4111-1111-1111-1111"
	tests := map[string]struct{ body, want string }{
		"empty":              {"", "decode JSON into *serialization_test.order: unexpected end of JSON input"},
		"cut short":          {`{"id":"` + secret, "decode JSON into *serialization_test.order: unexpected end of JSON input"},
		"not JSON":           {"<order>" + secret + "</order>", "decode JSON into *serialization_test.order: invalid character '<' looking for beginning of value"},
		"more after the end": {`{"id":"` + secret + `"} {}`, "decode JSON into *serialization_test.order: invalid character '{' after top-level value"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := serialization.JSON.Unmarshal([]byte(test.body), &order{})
			if err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			var syntax *json.SyntaxError
			if !errors.As(err, &syntax) {
				t.Errorf("%v: the cause is hidden", err)
			}
		})
	}
}

func TestJSONDecodeErrorsDoNotRepeatTheBody(t *testing.T) {
	const secret = "4111-1111-1111-1111"
	for _, body := range []string{
		`{"amount":"` + secret + `"}`,
		`{"lines":{"` + secret + `":1}}`,
		`["` + secret + `"]`,
		`"` + secret + `"`,
		`{"extra":["` + secret + `"]}`,
	} {
		err := serialization.JSON.Unmarshal([]byte(body), &order{})
		var kind *json.UnmarshalTypeError
		if !errors.As(err, &kind) {
			t.Errorf("%s: %v, want a type error", body, err)
			continue
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows what was in the body: %v", err)
		}
		if err.Error() != "decode JSON into *serialization_test.order: "+kind.Error() {
			t.Errorf("the error says more than encoding/json: %v", err)
		}
	}
}

// A producer that writes Latin-1 changes no name: its body is an error that says where.
func TestJSONThatIsNotUTF8IsAnError(t *testing.T) {
	var got order
	err := serialization.JSON.Unmarshal([]byte("\xef\xbb\xbf{\"id\":\"M\xfcller\"}"), &got)
	if err == nil || !strings.Contains(err.Error(), "not valid UTF-8 at byte 11") {
		t.Errorf("got %+v and %v", got, err)
	}
}

func TestJSONDecodeNeedsAPointer(t *testing.T) {
	for _, v := range []any{nil, order{}, (*order)(nil)} {
		err := serialization.JSON.Unmarshal([]byte(`{}`), v)
		var invalid *json.InvalidUnmarshalError
		if !errors.As(err, &invalid) {
			t.Errorf("into %T: %v", v, err)
		}
	}
}

func TestJSONEncodeErrorsNameTheTypeAndKeepTheCause(t *testing.T) {
	cause := errors.New("no more ink")
	tests := map[string]struct {
		value any
		want  string
	}{
		"not a number":  {order{Amount: math.NaN()}, "encode serialization_test.order as JSON: json: unsupported value: NaN"},
		"a channel":     {&struct{ C chan int }{}, "encode *struct { C chan int } as JSON: json: unsupported type: chan int"},
		"one that says": {failing{cause}, "encode serialization_test.failing as JSON: json: error calling MarshalJSON for type serialization_test.failing: no more ink"},
	}
	for name, test := range tests {
		body, err := serialization.JSON.Marshal(test.value)
		if err == nil || err.Error() != test.want || body != nil {
			t.Errorf("%s: %q and\n     %v\nwant %s", name, body, err, test.want)
		}
	}
	if _, err := serialization.JSON.Marshal(failing{cause}); !errors.Is(err, cause) {
		t.Errorf("%v: the cause is hidden", err)
	}
}

type failing struct{ err error }

func (f failing) MarshalJSON() ([]byte, error) { return nil, f.err }

// Any input is an error, or a value that can be written and read again.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"id":"1","amount":1e3,"placed":"2026-03-01T12:00:00Z"}`))
	f.Add([]byte("\xef\xbb\xbf{}"))
	f.Add([]byte("null"))
	f.Add([]byte("{\"id\":\"\xe4\"}"))
	f.Add([]byte(`{"raw":null,"blob":"AA=="}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		var read order
		err := serialization.JSON.Unmarshal(body, &read)
		if string(body) != before {
			t.Fatal("the body was changed")
		}
		if err != nil {
			return
		}
		if !utf8.Valid(body) {
			t.Fatalf("%q is read, and is not valid UTF-8", body)
		}
		written, err := serialization.JSON.Marshal(read)
		if err != nil {
			t.Fatal(err)
		}
		var again order
		if err := serialization.JSON.Unmarshal(written, &again); err != nil {
			t.Fatal(err)
		}
		rewritten, err := serialization.JSON.Marshal(again)
		if err != nil {
			t.Fatal(err)
		}
		if string(rewritten) != string(written) {
			t.Fatalf("%s became %s", written, rewritten)
		}
	})
}
