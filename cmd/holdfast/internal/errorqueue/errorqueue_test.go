package errorqueue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// failed is a message of an error queue, with headers as name, value, name, value.
func failed(id string, headers ...string) *transport.Message {
	m := &transport.Message{ID: id, Body: []byte(`{"id":"` + id + `"}`)}
	m.Headers.Set(header.MessageID, id)
	for i := 0; i < len(headers); i += 2 {
		m.Headers.Set(headers[i], headers[i+1])
	}
	return m
}

// errorQueue is a broker with messages in its error queue.
func errorQueue(t *testing.T, ms ...*transport.Message) (*inmemory.Transport, *errorqueue.Queue) {
	t.Helper()
	broker := &inmemory.Transport{}
	broker.CreateQueues("error", "sales")
	for _, m := range ms {
		if err := broker.Put("error", m); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := broker.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return broker, &errorqueue.Queue{Conn: conn, Name: "error"}
}

func idsIn(broker *inmemory.Transport, queue string) (ids []string) {
	for _, m := range broker.Messages(queue) {
		ids = append(ids, m.ID)
	}
	return ids
}

func listed(t *testing.T, q *errorqueue.Queue) (ids []string) {
	t.Helper()
	err := q.Each(t.Context(), func(_ *transport.Message, e errorqueue.Entry) error {
		ids = append(ids, e.ID)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// A control message is no failure: all failures are returned without it. A purge deletes it too.
func TestControlMessagesAreNoFailures(t *testing.T) {
	broker, q := errorQueue(t, failed("a", header.FailedQ, "sales"), failed("ack", header.ControlMessage, "True"))
	q.Filter.Failed = true
	o, err := q.Retry(t.Context(), errorqueue.Plan{Every: true})
	if err != nil || o.Matched != 1 || o.Done != 1 {
		t.Errorf("%+v, %v, want one message returned", o, err)
	}
	same(t, "error queue", idsIn(broker, "error"), "ack")
	if o, err := q.Purge(t.Context(), errorqueue.Plan{Every: true, DryRun: true}); err != nil || o.Matched != 1 {
		t.Errorf("a dry purge: %+v, %v, want the control message", o, err)
	}
}

func TestFiltersNarrowDownWhatIsMeant(t *testing.T) {
	undecodable := failed("d")
	undecodable.Undecodable = errors.New("headers are no JSON")
	_, q := errorQueue(t,
		failed("a", "Holdfast.Fault.Class", "timeout", header.ExceptionType, "*net.OpError", header.FailedQ, "sales",
			header.ProcessingEndpoint, "Sales", header.EnclosedMessageTypes, "Shop.PlaceOrder, Shop;Shop.IOrder",
			header.ExceptionMessage, "Connection refused", header.TimeOfFailure, header.FormatTime(noon)),
		failed("b", header.ExceptionType, "*errors.errorString", header.FailedQ, "billing",
			header.EnclosedMessageTypes, "Shop.Bill", header.ExceptionStackTrace, "bill.go:12",
			header.TimeOfFailure, header.FormatTime(noon.Add(time.Hour))),
		failed("c"), undecodable,
		failed("e", header.ControlMessage, "True", header.RetrySuccessful, header.FormatTime(noon)),
		failed("f", header.ControlMessage, "True", header.FailedQ, "shipping"),
	)
	for _, test := range []struct {
		name   string
		filter errorqueue.Filter
		want   string
	}{
		{"nothing", errorqueue.Filter{}, "abcdef"},
		{"nothing but failures", errorqueue.Filter{Failed: true}, "abcdf"},
		{"a control message by its id", errorqueue.Filter{Failed: true, IDs: []string{"e", "a"}}, "ae"},
		{"id", errorqueue.Filter{IDs: []string{"c", "a", "x"}}, "ac"},
		{"class", errorqueue.Filter{Classes: []string{"Timeout"}}, "a"},
		{"Go type where there is no class", errorqueue.Filter{Classes: []string{"*errors.errorString", "*net.OpError"}}, "b"},
		{"class of what cannot be read", errorqueue.Filter{Classes: []string{"undecodable"}}, "d"},
		{"full type", errorqueue.Filter{Types: []string{"Shop.Bill"}}, "b"},
		{"last part of a type", errorqueue.Filter{Types: []string{"PlaceOrder"}}, "a"},
		{"no part of a part", errorqueue.Filter{Types: []string{"Order", "op.Bill"}}, ""},
		{"base type", errorqueue.Filter{Types: []string{"IOrder"}}, "a"},
		{"endpoint", errorqueue.Filter{Endpoints: []string{"Sales"}}, "a"},
		{"queue", errorqueue.Filter{Queues: []string{"billing", "sales"}}, "ab"},
		{"since is included", errorqueue.Filter{Since: noon}, "ab"},
		{"until is excluded", errorqueue.Filter{Until: noon.Add(time.Hour)}, "a"},
		{"window", errorqueue.Filter{Since: noon.Add(1), Until: noon.Add(2 * time.Hour)}, "b"},
		{"text", errorqueue.Filter{Text: "REFUSED"}, "a"},
		{"text of a stack", errorqueue.Filter{Text: "bill.go"}, "b"},
		{"text of what cannot be read", errorqueue.Filter{Text: "no json"}, "d"},
		{"all kinds together", errorqueue.Filter{Types: []string{"Bill"}, Queues: []string{"sales"}}, ""},
	} {
		q.Filter = test.filter
		if got := strings.Join(listed(t, q), ""); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if all := test.filter.All(); all != strings.HasPrefix(test.name, "nothing") {
			t.Errorf("%s: All is %v", test.name, all)
		}
	}
}

func TestAnEntryTellsWhatTheHeadersSay(t *testing.T) {
	m := failed("a", "Holdfast.Fault.Class", "panic", header.EnclosedMessageTypes, "Shop.Bill, Shop", header.FailedQ, "q",
		header.ProcessingEndpoint, "E", header.TimeOfFailure, header.FormatTime(noon), header.ExceptionMessage, "no",
		header.HoldfastAttempts, "6", header.HoldfastReturns, "2")
	want := errorqueue.Entry{
		ID: "a", Class: "panic", Type: "Shop.Bill", Endpoint: "E", Queue: "q", FailedAt: noon, Error: "no",
		Attempts: 6, Returns: 2, Bytes: len(m.Body),
	}
	e := errorqueue.EntryOf(m)
	if got, expected := asJSON(t, e), asJSON(t, want); got != expected {
		t.Errorf("entry %s, want %s", got, expected)
	}
	strange := failed("b", header.TimeOfFailure, "yesterday", header.HoldfastAttempts, "-1", header.HoldfastReturns, "many")
	if got, expected := asJSON(t, errorqueue.EntryOf(strange)), `{"id":"b","bytes":10}`; got != expected {
		t.Errorf("entry of strange headers %s, want %s", got, expected)
	}
}

func TestARecordHasAllOfTheMessage(t *testing.T) {
	m := failed("a", "Tenant", "t")
	m.Body, m.NativeID, m.Native = []byte{0, 255}, "17", map[string]string{"x": "y"}
	got := asJSON(t, errorqueue.RecordOf(m, errorqueue.EntryOf(m)))
	want := `{"id":"a","bytes":2,"native_id":"17","headers":{"NServiceBus.MessageId":"a","Tenant":"t"},"native":{"x":"y"},"body":"AP8="}`
	if got != want {
		t.Errorf("record %s, want %s", got, want)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRetryReturnsMessagesAsTheyCame(t *testing.T) {
	broker, q := errorQueue(t, failed("a", header.FailedQ, "sales", header.Retries, "3", "Holdfast.Fault.Class", "x", "Tenant", "t"))
	outcome, err := q.Retry(t.Context(), errorqueue.Plan{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(errorqueue.Outcome{Queue: "error", Matched: 1, Done: 1}, outcome); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	ms := broker.Messages("sales")
	if len(ms) != 1 || len(broker.Messages("error")) != 0 {
		t.Fatalf("in sales %v, in error %v", idsIn(broker, "sales"), idsIn(broker, "error"))
	}
	want := `{"NServiceBus.MessageId":"a","Tenant":"t","Holdfast.Returns":"1"}`
	if got := asJSON(t, ms[0].Headers); ms[0].ID != "a" || string(ms[0].Body) != `{"id":"a"}` || got != want {
		t.Errorf("returned %s with headers %s and body %s, want headers %s", ms[0].ID, got, ms[0].Body, want)
	}
}

func TestWhatCannotBeReturnedStays(t *testing.T) {
	undecodable := failed("d", header.FailedQ, "sales")
	undecodable.Undecodable = errors.New("headers are no JSON")
	broker, q := errorQueue(t,
		failed("a", header.FailedQ, "gone"), failed("b"), failed("c", header.FailedQ, "sales"), undecodable)
	reported := map[string]string{}
	outcome, err := q.Retry(t.Context(), errorqueue.Plan{Report: func(e errorqueue.Entry, err error) {
		reported[e.ID] = fmt.Sprint(err)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if outcome.Done != 1 || outcome.Refused != 3 || outcome.Matched != 4 || len(outcome.Failures) != 3 {
		t.Errorf("outcome %+v", outcome)
	}
	for id, want := range map[string]string{"a": `queue "gone": no such queue`, "b": "--to", "c": "<nil>", "d": "headers are no JSON"} {
		if !strings.Contains(reported[id], want) {
			t.Errorf("%s: reported %q, want %q", id, reported[id], want)
		}
	}
	same(t, "left", idsIn(broker, "error"), "a", "b", "d")
	if _, err := q.Retry(t.Context(), errorqueue.Plan{To: "sales"}); err != nil {
		t.Fatal(err)
	}
	same(t, "left by --to", idsIn(broker, "error"), "d")
	if _, err := q.Discard(t.Context(), errorqueue.Plan{}); err != nil {
		t.Fatal(err)
	}
	same(t, "left by discard", idsIn(broker, "error"))
	same(t, "returned", idsIn(broker, "sales"), "c", "a", "b")
}

func TestADryRunChangesNothing(t *testing.T) {
	broker, q := errorQueue(t, failed("a", header.FailedQ, "sales"), failed("b"))
	for _, take := range []func(*errorqueue.Queue, context.Context, errorqueue.Plan) (errorqueue.Outcome, error){
		(*errorqueue.Queue).Retry, (*errorqueue.Queue).Discard,
	} {
		outcome, err := take(q, t.Context(), errorqueue.Plan{DryRun: true})
		if err != nil || !outcome.DryRun || outcome.Matched != 2 {
			t.Errorf("outcome %+v, %v", outcome, err)
		}
	}
	same(t, "error", idsIn(broker, "error"), "a", "b")
	same(t, "sales", idsIn(broker, "sales"))
}

func TestTheFirstFewOnlyOfManyPages(t *testing.T) {
	var ms []*transport.Message
	for i := range 250 {
		ms = append(ms, failed(fmt.Sprint(i), header.FailedQ, []string{"sales", "other"}[i%2]))
	}
	broker, q := errorQueue(t, ms...)
	q.Filter.Queues, q.Limit = []string{"sales"}, 110
	seen := 0
	q.Progress = func(n int) { seen = n }
	outcome, err := q.Retry(t.Context(), errorqueue.Plan{})
	if err != nil || outcome.Done != 110 || outcome.Matched != 110 {
		t.Errorf("outcome %+v, %v", outcome, err)
	}
	if len(idsIn(broker, "sales")) != 110 || len(idsIn(broker, "error")) != 140 || seen < 200 {
		t.Errorf("%d returned, %d left, %d seen", len(idsIn(broker, "sales")), len(idsIn(broker, "error")), seen)
	}
}

func TestIDsThatNobodyHasAreNamed(t *testing.T) {
	broker, q := errorQueue(t, failed("a", header.FailedQ, "sales"), failed("a", header.FailedQ, "sales"), failed("b"))
	q.Filter.IDs = []string{"a", "x", "x"}
	outcome, err := q.Retry(t.Context(), errorqueue.Plan{})
	if err != nil || outcome.Done != 2 {
		t.Errorf("outcome %+v, %v", outcome, err)
	}
	same(t, "missing", outcome.Missing, "x")
	same(t, "left", idsIn(broker, "error"), "b")
}

func TestWhatFailsAgainIsNotRetriedTwice(t *testing.T) {
	broker, q := errorQueue(t, failed("a", header.FailedQ, "error"), failed("b", header.FailedQ, "error"))
	outcome, err := q.Retry(t.Context(), errorqueue.Plan{})
	if err != nil || outcome.Done != 2 {
		t.Errorf("outcome %+v, %v", outcome, err)
	}
	same(t, "error", idsIn(broker, "error"), "a", "b")
}

func TestARateSpacesRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, q := errorQueue(t, failed("a", header.FailedQ, "sales"), failed("b", header.FailedQ, "sales"), failed("c", header.FailedQ, "sales"))
		start := time.Now()
		var at []time.Duration
		_, err := q.Retry(t.Context(), errorqueue.Plan{Rate: 0.5, Report: func(errorqueue.Entry, error) {
			at = append(at, time.Since(start))
		}})
		if err != nil || !slices.Equal(at, []time.Duration{0, 2 * time.Second, 4 * time.Second}) {
			t.Errorf("returned after %v, %v", at, err)
		}
	})
}

func TestAnInterruptLeavesTheRestAsItIs(t *testing.T) {
	broker, q := errorQueue(t, failed("a", header.FailedQ, "sales"), failed("b", header.FailedQ, "sales"))
	ctx, interrupt := context.WithCancel(t.Context())
	outcome, err := q.Retry(ctx, errorqueue.Plan{Report: func(errorqueue.Entry, error) { interrupt() }})
	if !errors.Is(err, context.Canceled) || outcome.Done != 1 {
		t.Errorf("outcome %+v, %v", outcome, err)
	}
	same(t, "left", idsIn(broker, "error"), "b")
}

func TestABrokerThatFailsEndsIt(t *testing.T) {
	broker, q := errorQueue(t, failed("a", header.FailedQ, "sales"), failed("b", header.FailedQ, "sales"))
	away := errors.New("away")
	broker.Fail = func(verb, _ string) error {
		if verb == "Take" {
			return away
		}
		return nil
	}
	outcome, err := q.Retry(t.Context(), errorqueue.Plan{})
	if !errors.Is(err, away) || !strings.Contains(err.Error(), "message a") || outcome.Done+outcome.Refused != 0 {
		t.Errorf("outcome %+v, %v", outcome, err)
	}
	same(t, "left", idsIn(broker, "error"), "a", "b")
}

func TestAMissingErrorQueueIsExplained(t *testing.T) {
	_, q := errorQueue(t)
	q.Name = "errors"
	_, err := q.Retry(t.Context(), errorqueue.Plan{})
	if !errors.Is(err, transport.ErrNoQueue) || !strings.Contains(err.Error(), "--queue") {
		t.Errorf("error %v", err)
	}
}

// Several messages may have an id that is made of their content, so such an id alone selects no
// message.
func TestAContentIDSelectsOneMessageOrAll(t *testing.T) {
	id := transport.ContentID([16]byte{7})
	for _, test := range []struct {
		name      string
		ids       []string
		limit     int
		every     bool
		done      int
		ambiguous bool
	}{
		{"the id alone", []string{id}, 0, false, 0, true},
		{"beside another", []string{"a", id}, 0, false, 0, true},
		{"the first", []string{id}, 1, false, 1, false},
		{"each", []string{id}, 0, true, 2, false},
		{"an id of a sender", []string{"a"}, 0, false, 1, false},
	} {
		broker, q := errorQueue(t, failed(id, header.FailedQ, "sales"), failed("a", header.FailedQ, "sales"), failed(id, header.FailedQ, "sales"))
		q.Filter.IDs, q.Limit = test.ids, test.limit
		o, err := q.Retry(t.Context(), errorqueue.Plan{Every: test.every})
		if (err != nil) != test.ambiguous || o.Done != test.done || len(idsIn(broker, "sales")) != test.done {
			t.Errorf("%s: %d returned, error %v", test.name, o.Done, err)
		}
		if test.ambiguous && (err == nil || !strings.Contains(err.Error(), "2 messages have the id "+id)) {
			t.Errorf("%s: the error is %v", test.name, err)
		}
	}
}

// packed is a message that failed, as the error queue has it when the bound of its broker has no
// room for more headers.
func packed(t *testing.T, m *transport.Message, size int) *transport.Message {
	t.Helper()
	m.Headers.Set("Foreign", strings.Repeat("x", size))
	full := header.New(header.Field{Name: header.FailedQ, Value: "sales"}, header.Field{Name: header.HoldfastFaultClass, Value: "timeout"})
	for form, c := range copies.ForErrorQueue(m, full) {
		if form == copies.Packed {
			return c
		}
	}
	t.Fatal("there is no packed candidate")
	return nil
}

// Packed messages are listed and returned as they were sent. Only a return whose headers have no
// room stays packed.
func TestPackedMessagesAreListedAndReturned(t *testing.T) {
	m := failed("a", header.EnclosedMessageTypes, "Shop.Bill")
	whole := m.Headers.Clone()
	broker, q := errorQueue(t, packed(t, m, 5000))
	err := q.Each(t.Context(), func(listed *transport.Message, e errorqueue.Entry) error {
		if e.Class != "timeout" || e.Type != "Shop.Bill" || len(listed.Headers.Get("Foreign")) != 5000 || e.Undecodable != "" {
			t.Errorf("listed %+v with %s", e, listed.Headers.AppendJSON(nil))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if o, err := q.Retry(t.Context(), errorqueue.Plan{}); err != nil || o.Done != 1 {
		t.Fatalf("%+v, %v", o, err)
	}
	whole.Set("Foreign", strings.Repeat("x", 5000))
	whole.Set(header.HoldfastReturns, "1")
	if got := broker.Messages("sales"); len(got) != 1 || asJSON(t, got[0].Headers) != asJSON(t, whole) {
		t.Errorf("returned %s", asJSON(t, got[0].Headers))
	}
}

func TestReturnWithoutRoomStaysPacked(t *testing.T) {
	broker := &inmemory.Transport{}
	broker.Refuse = func(op *transport.Operation) error {
		if n := op.Message.Headers.Size(); n > 5000 {
			return &transport.TooLargeError{What: "headers", Size: n, Max: 5000}
		}
		return nil
	}
	broker.CreateQueues("error", "sales")
	if err := broker.Put("error", packed(t, failed("a"), 5000)); err != nil {
		t.Fatal(err)
	}
	conn, err := broker.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	q := &errorqueue.Queue{Conn: conn, Name: "error"}
	if o, err := q.Retry(t.Context(), errorqueue.Plan{}); err != nil || o.Done != 1 {
		t.Fatalf("%+v, %v", o, err)
	}
	got := broker.Messages("sales")
	if len(got) != 1 || got[0].Headers.Get(header.HoldfastReceived) == "" || got[0].Headers.Get(header.HoldfastReturns) != "1" {
		t.Fatalf("returned %v", got)
	}
	if n := len(copies.Unpacked(got[0]).Headers.Get("Foreign")); n != 5000 {
		t.Errorf("unpacked, the header has %d bytes", n)
	}
}

func TestDamagedPackedMessageIsListed(t *testing.T) {
	_, q := errorQueue(t, failed("a", header.HoldfastReceived, "?", header.FailedQ, "sales"))
	o, err := q.Retry(t.Context(), errorqueue.Plan{})
	if err != nil || o.Refused != 1 || !strings.Contains(o.Failures[0].Error, header.HoldfastReceived) {
		t.Errorf("%+v, %v", o, err)
	}
}
