package asb_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// foreign is a message with two properties of a foreign producer, together of so many bytes.
func foreign(id string, size int) *transport.Message {
	m := message(id, `{"N":1}`)
	m.Headers.Set(header.EnclosedMessageTypes, "Work.Job")
	m.Headers.Set("Foreign-1", strings.Repeat("1", size/2))
	m.Headers.Set("Foreign-2", strings.Repeat("2", size/2))
	return m
}

// A bound of 32 KiB is that of a single property: a message with more in all is delayed, audited
// and moved like any other, as far as the service accepts the copies, and otherwise packed.
func TestPropertiesOfUpTo64KiBMove(t *testing.T) {
	t.Parallel()
	for _, size := range []int{40_000, 62_000, 65_200} {
		for _, fails := range []bool{true, false} {
			ns := brokertest.OwnServiceBus(t)
			c := open(t, on(ns))
			install(t, c, "work", "error", "audit")
			sent := foreign("m-1", size)
			dispatch(t, c, transport.Operation{Queue: "work", Message: sent})
			handled := 0
			settled := make(chan string, 10)
			s := run(t, on(ns), func(cfg *endpoint.Config) {
				cfg.Concurrency, cfg.AuditQueue = 1, "audit"
				cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
				cfg.Notify = []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) {
					if n.Kind != recoverability.FallbackTaken {
						settled <- string(n.Kind)
					}
				}}
			}, func(context.Context, *endpoint.Session, job) error {
				if handled++; fails {
					return errors.New("no")
				}
				return nil
			})
			queue := "error"
			if !fails && size < 65_000 {
				queue = "audit"
			} else if kind := await(t, "the message moves", settled); kind != string(recoverability.MovedToError) {
				t.Errorf("%d bytes, fails %v: %s", size, fails, kind)
			}
			got := copies.Unpacked(next(t, receive(t, c, queue)).Message())
			if got.ID != "m-1" || got.Headers.Get("Foreign-1") != sent.Headers.Get("Foreign-1") || got.Headers.Get("Foreign-2") != sent.Headers.Get("Foreign-2") {
				t.Errorf("%d bytes, fails %v: %q has %s with %d bytes of headers", size, fails, queue, got.ID, got.Headers.Size())
			}
			s.end()
			if q := ns.Control.State().Queues["work"]; handled != 1 || q.Active != 0 || q.DeadLetters != 0 {
				t.Errorf("%d bytes, fails %v: handled %d times, and %+v is left", size, fails, handled, q)
			}
		}
	}
}

// The service refuses properties of more than 64 KiB: that is a refusal of the message, and the
// link lasts.
func TestPropertiesOverTheBoundAreContent(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	byService, byDriver := 0, 0
	for size := 65_300; size <= 65_536; size += 4 {
		_, err := c.Dispatch(within(t), []transport.Operation{{Queue: "in", Message: foreign("m-1", size)}})
		switch {
		case errors.Is(err, transport.ErrContent) && copies.OfMessage(err):
			byService++
		case errors.Is(err, transport.ErrTooLarge) && copies.OfMessage(err):
			byDriver++
		case err != nil || byService+byDriver > 0:
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if byService == 0 || byDriver == 0 {
		t.Errorf("the service refused %d messages, and the driver %d", byService, byDriver)
	}
	dispatch(t, c, to("in", "after"))
}
