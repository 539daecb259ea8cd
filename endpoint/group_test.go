package endpoint_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// frameForm is the form of a frame for ServiceControl: blanks, a word, blanks, a type, a dot, a
// method, and in parentheses nothing or pairs of a type and a name. A place may follow: a word, a
// path with a root, a colon, a word and a number. Only blanks and tabs divide words, so that a type
// may go on in the next line.
var frameForm = func() *regexp.Regexp {
	const (
		blank = `[ \t]`
		word  = `[^ \t]+`
		pair  = `.+?` + blank + `+.+?`
		none  = blank + `*`
		pairs = pair + `(?:,` + none + pair + `)*`
		place = `(?:` + blank + `+\w+` + blank + `+(?:[a-z]:|/).+?:\w+` + blank + `+\d+)?`
	)
	return regexp.MustCompile(`(?mi)^` + none + `\w+` + blank + `+(` + word + `)\.(` + word + `?)` + none +
		`(\((?:` + none + `|` + pairs + `)\))` + place + `\s*$`)
}()

// groupTitle is the group in which ServicePulse shows a failure.
func groupTitle(typ, message, stack string) string {
	if message != "" {
		stack = strings.ReplaceAll(stack, message, "")
	}
	frame := frameForm.FindStringSubmatch(stack)
	if frame == nil {
		return typ + ": No stacktrace"
	}
	return typ + ": " + frame[1] + "." + frame[2] + frame[3]
}

func titleOf(h header.Map) string {
	return groupTitle(h.Get(header.ExceptionType), h.Get(header.ExceptionMessage), h.Get(header.ExceptionStackTrace))
}

// The outcomes were measured with the expression of ServiceControl itself.
func TestFramesHaveTheFormThatServiceControlReads(t *testing.T) {
	const told = "handler main.main.func5: poisoned: from .NET"
	for _, test := range []struct{ message, stack, want string }{
		{told, "*errors.errorString: " + told, "No stacktrace"},
		{"boom", string(debug.Stack()), "No stacktrace"},
		{"boom", "X: boom\n   at main.(*Shop).Charge() in /src/app/shop.go:line 35", "main.(*Shop).Charge()"},
		{"boom", "   at github.com/acme/shop/orders.Handle[...]() in /src/a.go:line 12", "github.com/acme/shop/orders.Handle[...]()"},
		{"boom", "   at main.main.func5({0x7f1, 0xc00})", "main.main.func5({0x7f1, 0xc00})"},
		{"boom", "   at main.main.func5(...) in /a.go:line 1", "No stacktrace"},
		{"boom", "   at main.f() in main.go:line 12", "No stacktrace"},
		{"boom", "   at main.f() in C:/src/main.go:line 12", "main.f()"},
		{"boom", "X: boom\n   at main.f() in /a.go:line 1\n" + string(debug.Stack()), "main.f()"},
		{"boom", "", "No stacktrace"},
		{"a\n   at a.b()", "X: a\n   at a.b()\n   at main.f()", "main.f()"},
	} {
		if got := groupTitle("X", test.message, test.stack); got != "X: "+test.want {
			t.Errorf("%q: group %q, want %q", test.stack, got, test.want)
		}
	}
}

type till struct{}

func (*till) charge(context.Context, *endpoint.Session, harness.PlaceOrder) error { return errNo }
func (till) refund(context.Context, *endpoint.Session, harness.PlaceOrder) error  { return errNo }
func chargeCard(context.Context, *endpoint.Session, harness.PlaceOrder) error     { return errNo }
func chargeAny[M any](context.Context, *endpoint.Session, M) error                { return errNo }
func panicAny[M any](context.Context, *endpoint.Session, M) error                 { panic(&errBank{}) }

func panicText(context.Context, *endpoint.Session, harness.PlaceOrder) error {
	panic("no\n   at x.y()")
}

func overdraw(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
	return withdraw(o.ID)
}
func withdraw(id string) error { return []error{}[len(id)] }

func exit(context.Context, *endpoint.Session, harness.PlaceOrder) error { runtime.Goexit(); return nil }

func wait(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
	<-ctx.Done()
	return ctx.Err()
}

func sendNowhere(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
	return s.Send(ctx, harness.ShipOrder{}, endpoint.To("nowhere"))
}

// tiller is a handler as a dependency gives it: by an interface.
type tiller interface {
	charge(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error
}

// saying returns a handler that returns err.
//
//go:noinline
func saying(err error) func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
	return func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return err }
}

func TestFailuresAreGroupedByTheirHandlerOrTheirPanic(t *testing.T) {
	const here = "github.com/holdfast-go/holdfast/endpoint_test."
	const closure = here + "saying.func1()"
	frames := strings.Repeat("   at x.y( a b, c d) in /a.go:line 1\n", 3)
	for name, test := range map[string]struct {
		handle func(context.Context, *endpoint.Session, harness.PlaceOrder) error
		want   string
	}{
		"a function":            {chargeCard, "*errors.errorString: " + here + "chargeCard()"},
		"a method":              {new(till).charge, "*errors.errorString: " + here + "(*till).charge()"},
		"a method of a value":   {till{}.refund, "*errors.errorString: " + here + "till.refund()"},
		"a method expression":   {tiller(new(till)).charge, "*errors.errorString: " + here + "tiller.charge()"},
		"a generic function":    {chargeAny[harness.PlaceOrder], "*errors.errorString: " + here + "chargeAny[...]()"},
		"a closure":             {saying(errNo), "*errors.errorString: " + closure},
		"wrapped":               {saying(fmt.Errorf("charge: %w", &errBank{})), "*endpoint_test.errBank: " + closure},
		"joined":                {saying(errors.Join(&errBank{}, errNo)), "*errors.joinError: " + closure},
		"unrecoverable":         {saying(recoverability.Unrecoverable(&errBank{})), "*endpoint_test.errBank: " + closure},
		"no text":               {saying(errors.New("")), "*errors.errorString: " + closure},
		"text of frames":        {saying(errors.New("\n" + frames)), "*errors.errorString: " + closure},
		"long text of frames":   {saying(errors.New(strings.Repeat(frames, 500))), "*errors.errorString: " + closure},
		"text that is no text":  {saying(errors.New(strings.Repeat("\xff at x.y()\n", 5000))), "*errors.errorString: " + closure},
		"a panic with an error": {panicAny[harness.PlaceOrder], "*endpoint_test.errBank: " + here + "panicAny[...]()"},
		"a panic with a text":   {panicText, "*endpoint.PanicError: " + here + "panicText()"},
		"a runtime error":       {overdraw, "runtime.boundsError: " + here + "withdraw()"},
		"Goexit":                {exit, "*errors.errorString: " + here + "exit()"},
		"a time-out":            {wait, "*endpoint.handlerTimeoutError: " + here + "wait()"},
		"sending":               {sendNowhere, "*transport.DispatchError: github.com/holdfast-go/holdfast/pipeline.Dispatch()"},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := harness.Sales(broker, endpoint.Handle(test.handle))
				cfg.HandlerTimeout = time.Minute
				checkGroup(t, broker, cfg, "Shop.PlaceOrder", test.want)
			})
		})
	}
}

// checkGroup has the endpoint fail for a message of a type, and compares its group, also where
// headers are cut.
func checkGroup(t *testing.T, broker *inmemory.Transport, cfg endpoint.Config, types, want string) {
	t.Helper()
	cfg.Recoverability = once
	harness.Start(t, cfg)
	if err := broker.Put("sales", native(types, "application/json", `{}`)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	failed := broker.Messages("error")
	if len(failed) != 1 {
		t.Fatalf("%d messages in the error queue", len(failed))
	}
	h := failed[0].Headers
	if got := titleOf(h); got != want {
		t.Errorf("group %q, want %q; stack\n%.1500s", got, want, h.Get(header.ExceptionStackTrace))
	}
	if got := titleOf(fault.Trim(h)); got != want {
		t.Errorf("with headers of 512 bytes: group %q, want %q", got, want)
	}
	if source := h.Get(header.ExceptionSource); !strings.Contains(want, " "+source+".") {
		t.Errorf("the source is %q", source)
	}
}

func TestFailuresOutsideOfHandlersHaveAGroup(t *testing.T) {
	const stages = "github.com/holdfast-go/holdfast/pipeline."
	for name, test := range map[string]struct {
		types  string
		change func(*endpoint.Config)
		want   string
	}{
		"an unknown type": {"Shop.Unknown", nil, "*endpoint.unhandledError: " + stages + "Receive()"},
		"a body that cannot be read": {"Shop.OrderPlaced", func(c *endpoint.Config) {
			c.Messages[1] = endpoint.Event[noted]("Shop.OrderPlaced")
			c.Handlers = []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, noted) error { return nil })}
		}, "*endpoint.undecodableError: " + stages + "Receive()"},
		"a behavior": {"Shop.PlaceOrder", func(c *endpoint.Config) {
			c.Pipeline.Receive.Use("fail", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
				return func(ctx context.Context, r *pipeline.Receive) error { return errors.Join(next(ctx, r), errNo) }
			})
		}, "*errors.joinError: " + stages + "Receive()"},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil }))
				if test.change != nil {
					test.change(&cfg)
				}
				checkGroup(t, broker, cfg, test.types, test.want)
			})
		})
	}
}

// noted cannot be read from any object.
type noted struct{}

func (*noted) UnmarshalJSON([]byte) error { return errNo }

// A place of any form is one that ServiceControl accepts, or it is left out.
func TestEveryPlaceOfAFrameIsOneThatServiceControlReads(t *testing.T) {
	for file, want := range map[string]string{
		"/src/app/shop.go":                 "in /src/app/shop.go:line 7",
		"/home/a user/my app/shop.go":      "in /home/a user/my app/shop.go:line 7",
		"C:/Users/a user/shop.go":          "in C:/Users/a user/shop.go:line 7",
		"example.com/acme/shop/shop.go":    "in /example.com/acme/shop/shop.go:line 7",
		"encoding/json/decode.go":          "in /encoding/json/decode.go:line 7",
		"<autogenerated>":                  "",
		"":                                 "",
		"??":                               "",
		"/a\nb.go":                         "",
		"/" + strings.Repeat("x", 5000):    "",
		`\\server\share\shop.go`:           `in /\\server\share\shop.go:line 7`,
		"/src/名前/店.go":                     "in /src/名前/店.go:line 7",
		"/src/in /other:line 3/x:line .go": "in /src/in /other:line 3/x:line .go:line 7",
	} {
		frame := fault.Frame{Func: "example.com/acme/shop.(*Shop).Charge", File: file, Line: 7}
		h := fault.Headers(recoverability.Failure{Err: errNo}, fault.Host{}, frame)
		trace := h.Get(header.ExceptionStackTrace)
		if got := titleOf(h); got != "*errors.errorString: example.com/acme/shop.(*Shop).Charge()" {
			t.Errorf("%.40q: group %q of %q", file, got, trace)
		}
		if !strings.HasSuffix(trace, "() "+want) && (want != "" || !strings.HasSuffix(trace, "()")) {
			t.Errorf("%.40q: %q, want %q", file, trace, want)
		}
	}
}

func TestABinaryBuiltWithTrimpathHasTheSameGroups(t *testing.T) {
	program := filepath.Join(t.TempDir(), "failing")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "./testdata/failing")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"*errors.errorString: main.charge()":  "in /github.com/holdfast-go/holdfast/endpoint/testdata/failing/main.go:line ",
		"*endpoint.PanicError: main.refund()": "in /github.com/holdfast-go/holdfast/endpoint/testdata/failing/main.go:line ",
	}
	got := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		h, err := header.ParseJSON(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		title, trace := titleOf(h), h.Get(header.ExceptionStackTrace)
		if got[title] = want[title]; !strings.Contains(trace, want[title]) {
			t.Errorf("%s: stack %s", title, trace)
		}
		if source := h.Get(header.ExceptionSource); source != "github.com/holdfast-go/holdfast/endpoint/testdata/failing" {
			t.Errorf("%s: source %q", title, source)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("groups %v", got)
	}
}
