package transporttest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var checkRules = []rule{
	newRule("check-as-dispatch", checkAsDispatch,
		"Check fails for each operation that Dispatch refuses because of its content, and for no other.", checking),
}

// maxChecked is the largest body that the rule sends.
const maxChecked = 16 << 20

func checkAsDispatch(t *test) {
	c, q := t.queueOf(t.open())
	checker, limits := as[transport.Checker](t, c), c.Limits()
	ops := map[string]transport.Operation{
		"an ordinary message": to(q, "m"),
		"no destination":      {Message: message("m")},
		"a long queue name":   to(strings.Repeat("q", 5000), "m"),
		"an odd queue name":   to("q\x00\xff", "m"),
	}
	with := func(what string, change func(op *transport.Operation)) {
		op := to(q, "m")
		change(&op)
		ops[what] = op
	}
	for _, name := range []string{"CC", "BCC", strings.Repeat("n", 300), "odd \x00 name", "odd \xff name"} {
		with(fmt.Sprintf("header %.20q", name), func(op *transport.Operation) { op.Message.Headers.Set(name, "value") })
	}
	with("an odd header value", func(op *transport.Operation) { op.Message.Headers.Set("Kit.Odd", "\x00\xff") })
	with("many headers", func(op *transport.Operation) {
		for i := range 2000 {
			op.Message.Headers.Set(fmt.Sprint("Kit.", i), "")
		}
	})
	with("an odd property", func(op *transport.Operation) { op.Properties = map[string]string{"priority": "many"} })
	if most := limits.MaxDelay; most > 0 && most < transport.Unlimited/2 {
		with("a long delay", func(op *transport.Operation) { op.After = most + time.Hour })
	}
	if most := limits.MaxBody; most > 0 && most <= maxChecked {
		with("a large body", func(op *transport.Operation) { op.Message.Body = make([]byte, most+1) })
	}
	for what, op := range ops {
		checked, sent := checker.Check(&op), dispatch(t.ctx(), c, op)
		switch {
		case checked != nil && sent == nil:
			t.Errorf("%s: Dispatch accepts the operation, and Check says %v", what, checked)
		case checked == nil && sent != nil && !errors.Is(sent, transport.ErrNoQueue):
			t.Errorf("%s: Check accepts the operation, and Dispatch says %v", what, sent)
		}
	}
}
