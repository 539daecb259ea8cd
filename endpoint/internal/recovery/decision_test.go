package recovery

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// received is a delivery without a dead-letter queue.
type received struct{ transport.Delivery }

// failed returns a message of queue "orders" on a transport with delays of at most an hour.
func failed() *Failed {
	d := &settle.Delivery{
		Settler: &settle.Settler{
			Log: slog.New(slog.DiscardHandler), Config: &recoverability.Config{ErrorQueue: "error"},
		},
		Received: received{},
	}
	d.ID, d.Queue = "m-1", "orders"
	receives := func(queue string) bool { return queue == "orders.quarantine" }
	return &Failed{
		Shared:   &Shared{Limits: transport.Limits{MaxDelay: time.Hour}, ReceivesFrom: receives},
		Delivery: d,
	}
}

func TestActionsThatAreImpossible(t *testing.T) {
	for name, test := range map[string]struct {
		action recoverability.Action
		set    func(*Failed)
		want   string // a part of the reason; "" for a possible action
	}{
		"a retry":              {action: recoverability.Retry{}},
		"a delay":              {action: recoverability.Delay{For: time.Hour}},
		"a delay that is long": {action: recoverability.Delay{For: time.Hour + 1}, want: "over the transport's 1h0m0s"},
		"a delay without delays": {
			action: recoverability.Delay{}, set: func(f *Failed) { f.Limits.MaxDelay = 0 }, want: "offers no delays",
		},
		"an inline retry": {
			action: recoverability.RetryInline{For: time.Minute},
			set:    func(f *Failed) { f.HoldUntil = time.Now().Add(time.Hour) },
		},
		"an inline retry that is late": {
			action: recoverability.RetryInline{For: time.Hour},
			set:    func(f *Failed) { f.HoldUntil = time.Now().Add(time.Minute) }, want: "before the inline retry",
		},
		"a retry in quarantine": {
			action: recoverability.Retry{}, set: func(f *Failed) { f.Exclusive = &quarantine.Message{} }, want: "at once in quarantine",
		},
		"another error queue":           {action: recoverability.MoveToError{Queue: "error-2"}},
		"the queue of the message":      {action: recoverability.MoveToError{Queue: "orders"}, want: "receives from that queue"},
		"a queue that is received":      {action: recoverability.MoveToError{Queue: "orders.quarantine"}, want: "receives from that queue"},
		"no dead-letter queue":          {action: recoverability.DeadLetter{}, want: "no dead-letter queue"},
		"a message that is discarded":   {action: recoverability.Discard{}},
		"a value that is not an action": {want: "is no action"},
	} {
		t.Run(name, func(t *testing.T) {
			f := failed()
			if test.set != nil {
				test.set(f)
			}
			why := f.impossible(test.action)
			if !strings.Contains(why, test.want) || (why == "") != (test.want == "") {
				t.Errorf("the reason is %q, want %q", why, test.want)
			}
		})
	}
}
