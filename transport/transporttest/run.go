package transporttest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/transport"
)

// Harness connects the kit to a driver's test. Open is required; a nil field is not offered, unless
// its comment says otherwise. Its functions are called from several goroutines and fail the test
// themselves; they clean up in t.Cleanup.
type Harness struct {
	// Open returns a transport, and is called for each rule. Rules use names of their own, so all
	// transports may be of the same broker. A rule may open the transport several times.
	Open func(t testing.TB) transport.Transport
	// ShortLease is Open with leases of a few seconds, because rules about leases wait for their
	// end. On a busy machine shorter ones may end before a rule has used them. nil is Open, for
	// drivers with such leases or without leases.
	ShortLease func(t testing.TB) transport.Transport
	// Name returns a unique name of a queue or type. nil appends random text.
	Name func(t testing.TB, name string) string
	// CreateQueue creates a queue. Required if the Conn is no [transport.Installer].
	CreateQueue func(t testing.TB, tr transport.Transport, name string)
	// PutUndecodable sends a message that the driver cannot decode, as another program could.
	PutUndecodable func(t testing.TB, tr transport.Transport, queue string)
	// Translate is Open with a function of the user that changes received messages, for a
	// [transport.Translator].
	Translate func(t testing.TB, f func(*transport.Message)) transport.Transport
	// LimitDeliveries sets how often a message of a queue is delivered before the broker drops it
	// or moves it to another queue.
	LimitDeliveries func(t testing.TB, tr transport.Transport, queue string, most int)
	// Begin begins a transaction in the transport's database as users do, for a
	// [transport.TxDispatcher].
	Begin func(t testing.TB, tr transport.Transport) UserTx
	// Write writes to the transport's database in a handler's transaction, as users do, and returns
	// a function that reports whether the write is committed. It is for a [transport.OutboxStore].
	Write func(t testing.TB, tr transport.Transport, tx transport.HandlerTx) (committed func() bool)
	// Sweep has an [transport.OutboxStore] remove the ids that are older than Env.Remember from an
	// inbox within seconds, if the driver does so at longer intervals. It does nothing for a driver
	// that removes them sooner.
	Sweep func(t testing.TB, tr transport.Transport, inbox string)
	// Break is ShortLease with a connection that can be broken, and its Link.
	Break func(t testing.TB) (transport.Transport, Link)
	// Restart is ShortLease on a broker of the rule's own, and a function that stops and starts
	// that broker. It returns when the broker answers.
	Restart func(t testing.TB) (tr transport.Transport, restart func())
	// OneAtATime has rules about order ask for one message in each Receive. It is for drivers that
	// keep the order of a queue only then, because a message that arrives between two calls returns
	// to the queue.
	OneAtATime bool
	// Unordered has rules accept messages in any order. It is for brokers that promise none, such
	// as the standard queues of Amazon SQS.
	Unordered bool
	// Bubble runs each rule in a bubble of testing/synctest, where waiting takes no time. It is for
	// drivers without I/O.
	Bubble bool
}

// UserTx is a user's transaction with the functions that end it.
type UserTx struct {
	Tx               any
	Commit, Rollback func(context.Context) error
}

// Link is a connection to a broker that fails on demand.
type Link interface {
	Cut()    // ends every connection, and accepts new ones
	Refuse() // ends every connection, and refuses new ones until Resume
	Pause()  // holds all traffic until Resume: neither side receives anything
	Resume()
}

// Rule is a rule of the kit.
type Rule struct {
	Theme string
	Name  string
	Rule  string   // a sentence
	Needs []string // capabilities without which the rule does not apply
}

// Rules returns all rules, in the order in which they are run.
func Rules() (all []Rule) {
	for _, theme := range themes {
		for _, r := range theme.rules {
			all = append(all, Rule{Theme: theme.title, Name: r.name, Rule: r.rule, Needs: r.missing(nil)})
		}
	}
	return all
}

// Run runs every rule as a subtest, several at once: those of the given themes, or all if none are
// named. A driver that keeps all rules may run some themes only for further values of a setting.
func Run(t *testing.T, h Harness, only ...string) {
	t.Helper()
	var offered offer
	h.within(t, func(t testing.TB) { offered = probe(newTest(t, h)) })
	var sum summary
	t.Cleanup(func() { t.Log(sum.String()) })
	for _, r := range rulesOf(t, only) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			if missing := r.missing(&offered); missing != nil {
				t.Logf("not offered: %s", strings.Join(missing, ", "))
				sum.notOffered(r.name)
				return
			}
			defer sum.ran(t)
			h.within(t, func(t testing.TB) { r.check(newTest(t, h)) })
		})
	}
}

// within calls f, in a bubble if the harness says so.
func (h Harness) within(t *testing.T, f func(testing.TB)) {
	t.Helper()
	if h.Bubble {
		synctest.Test(t, func(t *testing.T) { f(t) })
	} else {
		f(t)
	}
}

// rule is a line of the table.
type rule struct {
	name  string
	run   func(t *test)
	rule  string
	needs []capability
}

func newRule(name string, run func(t *test), sentence string, needs ...capability) rule {
	return rule{name, run, sentence, needs}
}

type theme struct {
	title string
	rules []rule
}

// themes are the rules in the order of a message's life.
var themes = []theme{
	{"Messages", messageRules},
	{"Receiving", receiveRules},
	{"Settling", settleRules},
	{"Attempts", attemptRules},
	{"Leases", leaseRules},
	{"Dispatching", dispatchRules},
	{"Delays", delayRules},
	{"Publishing", publishRules},
	{"Completing and sending atomically", atomicRules},
	{"Sending in a user's transaction", joinRules},
	{"Handled messages", inboxRules},
	{"Recording a completed message", recordRules},
	{"Storing in an outbox", outboxRules},
	{"Deferring messages", deferRules},
	{"Checking operations", checkRules},
	{"Storing in a handler's transaction", storeTxRules},
	{"Messages with a name", timerRules},
	{"Records of handlers with state", stateRules},
	{"Concurrency", concurrencyRules},
	{"Stopping and closing", stopRules},
	{"Faults", faultRules},
	{"Installing and inspecting", inspectRules},
	{"Verifying and removing", removeRules},
	{"Browsing and purging", browseRules},
}

// table has every rule.
var table = func() (all []rule) {
	for _, theme := range themes {
		all = append(all, theme.rules...)
	}
	return all
}()

// rulesOf returns the rules of the themes, or all.
func rulesOf(t testing.TB, only []string) (rules []rule) {
	t.Helper()
	if len(only) == 0 {
		return table
	}
	for _, title := range only {
		i := slices.IndexFunc(themes, func(theme theme) bool { return theme.title == title })
		if i < 0 {
			t.Fatalf("there is no theme %q", title)
		}
		rules = append(rules, themes[i].rules...)
	}
	return rules
}

func (r rule) check(t *test) {
	t.Helper()
	t.Cleanup(func() { // after all others
		if t.Failed() {
			t.Logf("the rule: %s", r.rule)
		}
	})
	r.run(t)
}

// missing returns the names of the capabilities that the rule needs and o lacks; all if o is nil.
func (r rule) missing(o *offer) (names []string) {
	for _, c := range r.needs {
		if o == nil || !c.offered(*o) {
			names = append(names, c.name)
		}
	}
	return names
}

// summary counts the results of the rules.
type summary struct {
	mu             sync.Mutex // guards the fields below
	passed, failed int
	not            []string
}

func (s *summary) ran(t testing.TB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Failed() {
		s.failed++
	} else {
		s.passed++
	}
}

func (s *summary) notOffered(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.not = append(s.not, name)
}

func (s *summary) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%d rules passed, %d failed, %d not offered", s.passed, s.failed, len(s.not))
	if len(s.not) > 0 {
		slices.Sort(s.not)
		text += ": " + strings.Join(s.not, ", ")
	}
	return text
}
