package endpoint

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// incoming is a delivery in process: everything that its attempts share. The first attempt is
// allocated with it. Each further one is new, with a session of its own, because a goroutine
// that outlives an attempt may still use its session.
type incoming struct {
	e        *Endpoint
	live     *live
	delivery transport.Delivery
	slot     *pump.Slot
	queue    string
	road     *road // its guards; nil in the driver's own queues
	id       string
	original *transport.Message // as received, without the headers of the quarantine; never changed

	settlement settlement
	throttling throttling // the zero value where attempts are never limited
	keyed      keyed
	conflicts  conflicts
	impediment impediment
	exclusive  *exclusive    // nil outside quarantine
	mayWait    bool          // for its error queue, without a slot
	cleared    bool          // a suspect that the quarantine did not take
	inline     int           // retries within this delivery
	audit      *refusedAudit // nil unless the audit copy was refused
	recovery   *recovery     // nil until the attempt has failed
	first      attempt
}

// numberedID begins the id of a message that has only the broker's number. Copies keep it. Another
// message may get the same number when the database of the broker is restored, or the queue is
// created anew.
const numberedID = "native:"

// isNamed reports whether the sender has given the message its id, so that no other message has the
// same id.
func isNamed(id string) bool {
	return id != "" && !strings.HasPrefix(id, numberedID) && !transport.IsContentID(id)
}

func (l *live) newIncoming(d transport.Delivery, slot *pump.Slot, queue string) *incoming {
	in := &incoming{e: l.e, live: l, delivery: d, slot: slot, queue: queue}
	in.original, in.id = originalOf(d.Message())
	in.settlement.in, in.keyed.locks = in, l.keys
	return in
}

// originalOf returns a received message as its sender made it, and its id. A packed message is
// unpacked, whoever returned it.
func originalOf(received *transport.Message) (m *transport.Message, id string) {
	m = copies.Unpacked(received)
	if h, returned := fault.ReturnedHeaders(m.Headers); returned {
		own := *m
		own.Headers, m = h, &own
	}
	if id = cmp.Or(m.ID, m.Headers.Get(header.MessageID)); id == "" && m.NativeID != "" {
		id = numberedID + m.NativeID // of another producer
	}
	return m, id
}

// facts returns the message and everything about its failure that is known without counting.
func (in *incoming) facts(err error) recoverability.Failure {
	now := time.Now()
	m, attempt := sharedCopy(in.original), in.delivery.Attempt()
	return recoverability.Failure{
		Err: err, MessageID: in.id, Type: firstType(m.Headers), Queue: in.queue,
		Headers: m.Headers, Body: m.Body, Native: m.Native,
		Attempt: attempt.N, AttemptExact: attempt.Exact, Immediate: attempt.N + fault.UsedRetries(m.Headers),
		Delayed:      fault.DelayedRetries(m.Headers),
		Inline:       in.inline,
		FirstFailure: fault.FirstFailure(m.Headers, now), Now: now,
		Instance: in.e.cfg.Instance, History: fault.ParseHistory(m.Headers.Get(header.HoldfastHistory)),
		Config: in.live.recoverability,
	}
}

// sharedCopy returns a copy of a message for the user's code, which may change it. Copies to the
// error queue, to the audit queue and for later are made of the original. The headers are copied on
// write.
func sharedCopy(m *transport.Message) *transport.Message {
	c := *m
	c.Headers, c.Body, c.Native = m.Headers.CopyOnWrite(), slices.Clone(m.Body), maps.Clone(m.Native)
	return &c
}

func firstType(h header.Map) string {
	for name := range header.TypeNames(h.Get(header.EnclosedMessageTypes)) {
		return name
	}
	return ""
}

// copyTo returns an operation that sends the message, as it was received, to a queue. The copy
// keeps the broker's id, so that a driver can distinguish copies of different deliveries, and the
// broker's properties, so that a driver can send them again.
func (in *incoming) copyTo(queue string, headers header.Map, after time.Duration) transport.Operation {
	headers.SetDefault(header.MessageID, in.id)
	return transport.Operation{
		Message: &transport.Message{
			ID: in.id, NativeID: in.original.NativeID, Native: in.original.Native,
			Headers: headers, Body: in.original.Body,
		},
		Queue: queue, After: after,
	}
}

func (in *incoming) log() *slog.Logger { return in.e.cfg.Logger }

// maxLogged bounds a text of a message in a line of the log, in bytes. Its sender chooses the id
// and the type.
const maxLogged = 512

// logID returns the id of the message for the log.
func (in *incoming) logID() string { return errtree.Cut(in.id, maxLogged) }

// forgetFailures ends the cycle of the message. Other messages may have an id that is made of the
// content: they have not crashed a process, although they were delivered before and have no failure
// here.
func (in *incoming) forgetFailures() {
	if transport.IsContentID(in.id) {
		in.e.failures.Clear(in.failureKey())
		return
	}
	in.e.failures.Forget(in.failureKey())
}

func (in *incoming) failureKey() failurelog.Key { return failurelog.KeyOf(in.queue, in.id) }

// logError logs an error that concerns the message.
func (in *incoming) logError(ctx context.Context, level slog.Level, text string, err error, attrs ...slog.Attr) {
	attrs = append(attrs, slog.String("message", in.logID()), slog.Any("error", err))
	in.log().LogAttrs(ctx, level, text, attrs...) //nolint:sloglint // the texts are constants of the callers
}
