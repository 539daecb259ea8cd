package fault

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

// tracedError says text, and has a stack with text in it.
type tracedError struct{ text, stack string }

func (e tracedError) Error() string      { return e.text }
func (e tracedError) StackTrace() string { return e.stack }

// A reader of the error queue takes the text out of the stack: nothing of the text may be left,
// however both were cut.
func TestAStackHasTheTextOfTheErrorWholeOrNotAtAll(t *testing.T) {
	for name, text := range map[string]string{
		"short": "no such card", "longer than a trimmed header": strings.Repeat("at x.y( a b, ", 100),
		"longer than a header": strings.Repeat("at x.y( a b, ", 3000), "not UTF-8": strings.Repeat("caf\xe9 at ", 200),
	} {
		frames := func(n int) string { return strings.Repeat("   at main.main() in /src/main.go:line 1\n", n) }
		for kind, err := range map[string]error{
			"plain":            errors.New(text),
			"traced":           tracedError{text, "T: " + text + "\n" + frames(3)},
			"traced, frames":   tracedError{text, frames(4) + text + "\n" + frames(3)},
			"text at the edge": tracedError{text, strings.Repeat("y", maxText-4) + text},
			"text twice":       tracedError{text, text + "\n" + text + frames(1)},
			"no text in it":    tracedError{text, frames(600)},
		} {
			full := Headers(recoverability.Failure{Err: err}, Host{}, Frame{Func: "main.charge", File: "/src/main.go", Line: 1})
			for form, h := range map[string]header.Map{"full": full, "trimmed": Trim(full)} {
				said, stack := h.Get(header.ExceptionMessage), h.Get(header.ExceptionStackTrace)
				rest := strings.ReplaceAll(stack, said, "")
				if said == "" || strings.Contains(rest, "at x.y( a b") || strings.Contains(rest, "caf? at") || strings.Contains(rest, "such card") {
					t.Errorf("%s, %s, %s: %d bytes of the text are left in the stack: %.60q", name, kind, form, len(rest), rest)
				}
				most := maxText + maxTrimmed + maxFrames
				if form == "trimmed" {
					most = maxTrimmed
				}
				if strings.Contains(stack, said) && !strings.Contains(rest, "\n   at main.") {
					t.Errorf("%s, %s, %s: no frame is left: %.60q", name, kind, form, rest)
				}
				if len(said) > most || len(stack) > most {
					t.Errorf("%s, %s, %s: a text of %d bytes, a stack of %d", name, kind, form, len(said), len(stack))
				}
			}
		}
	}
}

func TestTrimmedHeadersWithoutTextsStayWithout(t *testing.T) {
	h := Trim(headers(header.FailedQ, "billing"))
	if h.Len() != 1 {
		t.Errorf("headers %v", h)
	}
}
