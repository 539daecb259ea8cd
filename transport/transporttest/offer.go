package transporttest

import (
	"github.com/holdfast-go/holdfast/transport"
)

// offer has the capabilities of a driver.
type offer struct {
	harness  Harness
	limits   transport.Limits
	conn     transport.Conn
	receiver transport.Receiver
	delivery transport.Delivery
	storeTx  transport.Tx // of an OutboxStore
	attempt  transport.Attempt
	counted  bool // the attempt of the second delivery in a Counted queue is exact
}

// capability is a capability that a driver may lack.
type capability struct {
	name    string
	offered func(o offer) bool
}

func is[T any](v any) bool {
	_, ok := v.(T)
	return ok
}

// as returns v as an interface that it is known to implement.
func as[T any](t *test, v any) (own T) {
	t.Helper()
	own, ok := v.(T)
	if !ok {
		t.Fatalf("%T implements an interface once and not the next time", v)
	}
	return own
}

var (
	installing      = capability{"Installer", func(o offer) bool { return is[transport.Installer](o.conn) }}
	publishing      = capability{"Subscriber", func(o offer) bool { return is[transport.Subscriber](o.conn) }}
	cancelling      = capability{"Canceler", func(o offer) bool { return is[transport.Canceler](o.conn) }}
	joining         = capability{"TxDispatcher", func(o offer) bool { return is[transport.TxDispatcher](o.conn) }}
	addressing      = capability{"Addresser", func(o offer) bool { return is[transport.Addresser](o.conn) }}
	inspecting      = capability{"Inspector", func(o offer) bool { return is[transport.Inspector](o.conn) }}
	verifying       = capability{"Verifier", func(o offer) bool { return is[transport.Verifier](o.conn) }}
	subscribed      = capability{"SubscriptionVerifier", func(o offer) bool { return is[transport.SubscriptionVerifier](o.conn) }}
	removing        = capability{"Remover", func(o offer) bool { return is[transport.Remover](o.conn) }}
	translating     = capability{"Translator", func(o offer) bool { return is[transport.Translator](o.conn) }}
	browsing        = capability{"Browser", func(o offer) bool { return is[transport.Browser](o.conn) }}
	purging         = capability{"Purger", func(o offer) bool { return is[transport.Purger](o.conn) }}
	completing      = capability{"Completer", func(o offer) bool { return is[transport.Completer](o.delivery) }}
	checking        = capability{"Checker", func(o offer) bool { return is[transport.Checker](o.conn) }}
	deferring       = capability{"Deferrer", func(o offer) bool { return is[transport.Deferrer](o.delivery) }}
	transacting     = capability{"Transactor", func(o offer) bool { return is[transport.Transactor](o.delivery) }}
	storing         = capability{"OutboxStore", func(o offer) bool { return is[transport.OutboxStore](o.conn) }}
	detecting       = capability{"OutageDetector", func(o offer) bool { return is[transport.OutageDetector](o.storeTx) }}
	stateful        = capability{"StateStore", func(o offer) bool { return is[transport.StateStore](o.storeTx) }}
	recording       = capability{"HandledRecorder", func(o offer) bool { return is[transport.HandledRecorder](o.delivery) }}
	inboxing        = capability{"InboxInspector", func(o offer) bool { return is[transport.InboxInspector](o.conn) }}
	inspectingState = capability{"StateInspector", func(o offer) bool { return is[transport.StateInspector](o.conn) }}
	byBytes         = capability{"ByteReceiver", func(o offer) bool { return is[transport.ByteReceiver](o.receiver) }}
	burying         = capability{"DeadLetterer", func(o offer) bool { return is[transport.DeadLetterer](o.delivery) }}

	delays        = capability{"delays (Limits.MaxDelay)", func(o offer) bool { return o.limits.MaxDelay > 0 }}
	leases        = capability{"leases (Limits.Lease)", func(o offer) bool { return o.limits.Lease > 0 }}
	countedQueues = capability{"counted queues (Queue.Counted)", func(o offer) bool { return o.counted }}
	freeRelease   = capability{"free releases (Limits.FreeRelease)", func(o offer) bool { return o.limits.FreeRelease }}
	exact         = capability{"exact attempts (Attempt.Exact)", func(o offer) bool { return o.attempt.Exact }}
	boundBody     = capability{"a bound on bodies (Limits.MaxBody)", func(o offer) bool { return o.limits.MaxBody > 0 }}
	boundHeaders  = capability{"a bound on headers (Limits.MaxHeaders)", func(o offer) bool {
		return o.limits.MaxHeaders > 0
	}}
	boundReceive = capability{"a bound on Receive (Limits.MaxReceive)", func(o offer) bool {
		return o.limits.MaxReceive > 0
	}}

	undecodable = capability{"Harness.PutUndecodable", func(o offer) bool { return o.harness.PutUndecodable != nil }}
	translation = capability{"Harness.Translate", func(o offer) bool { return o.harness.Translate != nil }}
	limiting    = capability{"Harness.LimitDeliveries", func(o offer) bool { return o.harness.LimitDeliveries != nil }}
	beginning   = capability{"Harness.Begin", func(o offer) bool { return o.harness.Begin != nil }}
	writing     = capability{"Harness.Write", func(o offer) bool { return o.harness.Write != nil }}
	sweeping    = capability{"Harness.Sweep", func(o offer) bool { return o.harness.Sweep != nil }}
	breaking    = capability{"Harness.Break", func(o offer) bool { return o.harness.Break != nil }}
	restarting  = capability{"Harness.Restart", func(o offer) bool { return o.harness.Restart != nil }}
)

// probe receives a message to find the capabilities of a driver.
func probe(t *test) offer {
	t.Helper()
	c, _, r := t.receiverOf(t.open(), "probe")
	d := t.one(r, "probe")
	o := offer{harness: t.harness, limits: c.Limits(), conn: c, receiver: r, delivery: d, attempt: d.Attempt()}
	t.complete(d)
	if installing.offered(o) {
		o.counted = probeCounted(t, c)
	}
	if store, ok := c.(transport.OutboxStore); ok {
		tx, err := store.BeginStore(t.ctx(), transport.OutboxEntry{})
		t.must("BeginStore", err)
		t.do("Rollback", tx.Rollback)
		o.storeTx = tx
	}
	return o
}

func probeCounted(t *test, c transport.Conn) bool {
	t.Helper()
	q := t.install(c, transport.Queue{Name: t.name("probe-counted"), Counted: true})
	t.send(c, q, "probe")
	r := t.receiver(c, q)
	t.do("Retry", t.one(r, "probe").Retry)
	d := t.one(r, "probe")
	t.complete(d)
	return d.Attempt().Exact
}
