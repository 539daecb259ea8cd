package rabbitmq_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// A real one: it takes nothing, and acknowledgements make room.
func TestAnAlarmBlocksSendsAndNoAcknowledgements(t *testing.T) {
	t.Parallel()
	node := rabbitmq.WholeNode(t)
	watermark := func(part string) { node.Eval("vm_memory_monitor:set_vm_memory_high_watermark(" + part + ").") }
	const plenty = "0.4"
	t.Cleanup(func() { watermark(plenty) })
	c, closing := open(t, node.URL, nil), open(t, node.URL, nil)
	queue := install(t, c, "orders")
	must(t, dispatch(c, send1(queue, message("a", "x"))))
	must(t, dispatch(closing, send1(queue, message("b", "x"))))
	r := receive(t, c, queue, 10)
	held := nextN(t, r, 2)

	watermark("0.000001")
	blocked := func(c transport.Conn) {
		for ctx := within(t); ; {
			soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			_, err := c.Dispatch(soon, []transport.Operation{send1(queue, message("unknown", "x"))})
			cancel()
			if err != nil && strings.Contains(err.Error(), "takes no messages at the moment") && errors.Is(err, context.DeadlineExceeded) && errors.Is(err, transport.ErrUnreachable) {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("the broker does not block the connection: %v", err)
			}
		}
	}
	blocked(c)
	blocked(closing)
	for _, d := range held {
		must(t, d.Complete(t.Context()))
	}
	start := time.Now()
	must(t, closing.Close())
	if took := time.Since(start); took > time.Minute {
		t.Errorf("Close took %v", took)
	}
	sent := make(chan error, 1)
	go func() { sent <- dispatch(c, send1(queue, message("late", "x"))) }()

	watermark(plenty)
	must(t, <-sent)
	for late := false; !late; {
		d := next(t, r)
		if late = d.Message().ID == "late"; !late && d.Message().ID != "unknown" {
			t.Errorf("%s came again, though it was acknowledged", d.Message().ID)
		}
		must(t, d.Complete(t.Context()))
	}
}
