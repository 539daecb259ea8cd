package dialect

import (
	"strings"
	"testing"
)

func TestAnIdentifierIsUnquoted(t *testing.T) {
	for text, want := range map[string]struct {
		name, rest string
		ok         bool
	}{
		`"a"`:          {"a", "", true},
		`"a.b"."c"`:    {"a.b", `."c"`, true},
		`"a""b" c`:     {`a"b`, " c", true},
		`""""`:         {`"`, "", true},
		`"ä"""`:        {`ä"`, "", true},
		``:             {"", "", false},
		`a"b"`:         {"", `a"b"`, false},
		`""`:           {"", "", false},
		`"`:            {"", `"`, false},
		`"a""`:         {"", `"a""`, false},
		`"a`:           {"", `"a`, false},
		`"a""b""c`:     {"", `"a""b""c`, false},
		"\"\xff\x00\"": {"\xff\x00", "", true},
	} {
		if name, rest, ok := Unquote(text, '"', '"'); name != want.name || rest != want.rest || ok != want.ok {
			t.Errorf("%s: %q, %q, %v, want %+v", text, name, rest, ok, want)
		}
	}
	if name, rest, ok := Unquote("[a]]b[c]@x", '[', ']'); name != "a]b[c" || rest != "@x" || !ok {
		t.Errorf("%q, %q, %v", name, rest, ok)
	}
}

func FuzzUnquote(f *testing.F) {
	f.Add(`"a""b"."c"`)
	f.Fuzz(func(t *testing.T, text string) {
		name, rest, ok := Unquote(text, '"', '"')
		again := `"` + strings.ReplaceAll(name, `"`, `""`) + `"` + rest
		if ok && again != text {
			t.Errorf("%q was read as %q and %q", text, name, rest)
		}
	})
}
