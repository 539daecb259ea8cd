package strictjson_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/strictjson"
)

func TestInvalidUTF8IsAnErrorWithItsOffset(t *testing.T) {
	for text, at := range map[string]string{
		"{\"a\":\"\xe4\"}":         "at byte 6",
		"\xff":                     "at byte 0",
		"{\"ä\":\"\xed\xa0\x80\"}": "at byte 7", // a surrogate
		"{\"a\":\"x\xc3":           "at byte 7",
		"{\"\xe4\":1}":             "at byte 2",
		"{} \xc0\x80":              "at byte 3", // longer than needed
	} {
		var v any
		if err := strictjson.Unmarshal([]byte(text), &v); err == nil || !strings.Contains(err.Error(), at) {
			t.Errorf("%q: the error is %v, want %q", text, err, at)
		}
	}
	var v struct{ A string }
	if err := strictjson.Unmarshal([]byte("{\"a\":\"\uFFFD ä 日本\"}"), &v); err != nil || v.A != "\uFFFD ä 日本" {
		t.Errorf("got %q and %v", v.A, err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte("{\"a\":\"\xe4\"}"))
	f.Add([]byte(`{"a":"\ud800"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var v any
		if err := strictjson.Unmarshal(text, &v); err == nil && !utf8.Valid(text) {
			t.Errorf("%q was decoded as %v", text, v)
		}
	})
}
