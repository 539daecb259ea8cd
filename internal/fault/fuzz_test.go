package fault

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

// Whatever other producers write into the headers that Decide is asked with, it
// decides, counts on from there and comes to an end.
func FuzzRetryHeaders(f *testing.F) {
	f.Add("", "", int64(0))
	f.Add("3", "2026-03-01 12:00:00:000000 Z", first.Unix())
	f.Add("1048576", "2026-03-01 12:00:00:000001 Z", first.Unix()-1)
	f.Add("-1", "0000-00-00 00:00:00:000000 Z", int64(-62135596800))
	f.Add("99999999999999999999", "9999-12-31 23:59:59:999999 Z", int64(253402300799))
	f.Add("1e3", "2026-02-30 25:61:61:00000x Z", int64(1))
	f.Fuzz(func(t *testing.T, retries, since string, seconds int64) {
		now := time.Unix(seconds%253402300800, 0)
		if now.Year() < 1 {
			now = first
		}
		received := headers(header.Retries, retries, header.HoldfastFirstFailure, since, "Colour", "red")
		failure := recoverability.Failure{
			Err: errBroken, Headers: received, Immediate: 6, Now: now,
			Delayed: DelayedRetries(received), FirstFailure: FirstFailure(received, now),
		}
		if failure.Delayed < 0 || failure.Delayed > maxCount || failure.FirstFailure.After(now) {
			t.Fatalf("%d delayed retries since %v, now %v", failure.Delayed, failure.FirstFailure, now)
		}
		switch a := (recoverability.Config{}).Decide(failure).(type) {
		case recoverability.Delay:
			if failure.Delayed >= recoverability.DefaultDelayed || now.Sub(failure.FirstFailure) > 24*time.Hour {
				t.Fatalf("%v after %d delayed retries since %v", a, failure.Delayed, failure.FirstFailure)
			}
			if want := recoverability.DefaultDelay * time.Duration(failure.Delayed+1); a.For != want {
				t.Fatalf("%v, want %v", a, want)
			}
		case recoverability.MoveToError:
			if failure.Delayed < recoverability.DefaultDelayed && now.Sub(failure.FirstFailure) <= 24*time.Hour {
				t.Fatalf("%v after %d delayed retries since %v", a, failure.Delayed, failure.FirstFailure)
			}
		default:
			t.Fatalf("%v after Immediate was used up", a)
		}
		next := DelayHeaders(failure, header.Map{}, time.Minute)
		if got, want := DelayedRetries(next), min(failure.Delayed+1, maxCount); got != want {
			t.Fatalf("the copy counts %d delayed retries, want %d", got, want)
		}
		if got, want := FirstFailure(next, now), failure.FirstFailure.Truncate(time.Microsecond); !got.Equal(want) {
			t.Fatalf("the copy first failed %v, want %v", got, want)
		}
		if received.Get(header.Retries) != retries {
			t.Fatal("the source headers changed")
		}
		if afresh := ErrorHeaders(received, header.Map{}); text(afresh) != `{"Colour":"red"}` {
			t.Fatalf("the copy in the error queue has %s", text(afresh))
		}
	})
}

// Whatever an error says, and whatever its stack is, nothing of the text is left in the stack
// without the text, the frame is the first line of its form, and the sizes are kept.
func FuzzFaultStack(f *testing.F) {
	f.Add("card refused", "goroutine 1 [running]:\nmain.f(0x1)\n\t/src/a.go:7 +0x1\n", "main.g", "/src/b.go")
	f.Add("   at x.y()\n", "", "main.g", "b.go")
	f.Add("", "main.f\n\t\n", "", "")
	f.Add("\xff", "\t:\n", "main.g()", "C:")
	f.Add("x", "", "main.g\xff", "/\xff.go")
	f.Fuzz(func(t *testing.T, said, trace, function, file string) {
		for _, said := range []string{said, strings.Repeat(said, min(100, 2*maxText/max(1, len(said))))} {
			full := Headers(recoverability.Failure{Err: tracedError{said, trace}}, Host{}, Frame{function, file, 1})
			for form, h := range map[string]header.Map{"full": full, "trimmed": Trim(full)} {
				text, stack := h.Get(header.ExceptionMessage), h.Get(header.ExceptionStackTrace)
				most := 2*maxText + maxFrames
				if form == "trimmed" {
					most = maxTrimmed
				}
				if len(stack) > most || len(text) > most || !utf8.ValidString(stack) || !utf8.ValidString(text) {
					t.Fatalf("%s: a text of %d bytes, a stack of %d", form, len(text), len(stack))
				}
				if !strings.HasPrefix(stack, "fault.tracedError: "+text) {
					t.Fatalf("%s: the stack does not begin with the text: %.100q", form, stack)
				}
				rest := stack[len("fault.tracedError: "+text):]
				if rest != "" && rest[0] != '\n' {
					t.Fatalf("%s: after the text follows %.100q", form, rest)
				}
			}
		}
	})
}

// hasControl reports whether s has a control character that ServiceControl refuses on PostgreSQL,
// or a similar one.
func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && !strings.ContainsRune("\t\n\r", r) })
}

func FuzzFaultText(f *testing.F) {
	f.Add("card refused", 0)
	f.Add("日本語", maxText-2)
	f.Add("😀😀", maxText-3)
	f.Add("\xff\xfe\x80", maxText-1)
	f.Add("a\x00b\x1b", 0)
	f.Add("\x00\x00", maxText-5)
	f.Fuzz(func(t *testing.T, said string, before int) {
		said = strings.Repeat("x", max(0, before%(2*maxText))) + said
		h := Headers(recoverability.Failure{Err: errors.New(said)}, Host{}, Frame{})
		got, stack := h.Get(header.ExceptionMessage), h.Get(header.ExceptionStackTrace)
		if len(got) > maxText || !utf8.ValidString(got) {
			t.Fatalf("a text of %d bytes, valid: %v", len(got), utf8.ValidString(got))
		}
		if stack != "*errors.errorString: "+got {
			t.Fatalf("a stack of %d bytes, which is not the type and the text", len(stack))
		}
		for name, value := range h.All() {
			if hasControl(value) {
				t.Fatalf("%s has a control character: %.100q", name, value)
			}
		}
		if hasControl(said) {
			return
		}
		if utf8.ValidString(said) && !strings.HasPrefix(said, got) {
			t.Fatal("the text is not the beginning of what the error said")
		}
		if utf8.ValidString(said) && len(got) < min(len(said), maxText-utf8.UTFMax+1) {
			t.Fatalf("only %d of %d bytes are left", len(got), len(said))
		}
	})
}
