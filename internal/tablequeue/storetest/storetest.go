// Package storetest checks the rules of [tablequeue.Store] on a SQL dialect with its real database.
// It is imported by tests only.
package storetest

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// Harness opens stores of a dialect for the rules.
type Harness struct {
	// Open returns a store without queues, which is closed with the test. All stores of one test
	// have the same tables. Two tests have no table in common.
	Open func(t testing.TB) tablequeue.Store
	// Due makes all queues of the test due for a sweep. nil if the store has no Sweeper.
	Due func(t testing.TB)
}

// Run checks all rules, each in a subtest.
func Run(t *testing.T, h Harness) {
	for _, r := range slices.Concat(leasing, sending, looking, recording, naming) {
		t.Run(r.name, func(t *testing.T) {
			w := &world{T: t, Harness: h, Store: h.Open(t)}
			w.ok(w.Topology.Install(t.Context(), plan("in", "out")))
			r.check(w)
		})
	}
}

// Lacks checks that s has all parts except the named ones. The names are in the order of the
// fields.
func Lacks(t testing.TB, s tablequeue.Store, names ...string) {
	t.Helper()
	var missing []string
	for field, part := range reflect.ValueOf(s).Fields() {
		if part.IsZero() || part.Kind() == reflect.Interface && part.Elem().IsZero() {
			missing = append(missing, field.Name)
		}
	}
	if !slices.Equal(missing, names) {
		t.Errorf("the store lacks the parts %q, want %q", missing, names)
	}
}

type rule struct {
	name  string
	check func(w *world)
}

// world is a store with the queues "in" and "out".
type world struct {
	*testing.T
	tablequeue.Store
	Harness
}

// patience is the longest wait for an expected event.
const patience = 30 * time.Second

// long is a lease that lasts for the test.
const long = time.Hour

func plan(queues ...string) (p transport.Plan) {
	for _, q := range queues {
		p.Queues = append(p.Queues, transport.Queue{Name: q})
	}
	return p
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) is(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Errorf("error = %v, want %v", err, want)
	}
}

// send inserts a message for each id, in a batch.
func (w *world) send(queue string, ids ...string) {
	w.Helper()
	var units []*tablequeue.Unit
	for _, id := range ids {
		units = append(units, sending1(row(queue, id)))
	}
	w.flush(units...)
}

func row(queue, id string) tablequeue.Row {
	return tablequeue.Row{Queue: queue, ID: id, Headers: []byte(`{"k":"` + id + `"}`), Body: []byte("body of " + id)}
}

// late is a row of "in" that is due after a delay.
func late(delay time.Duration) tablequeue.Row {
	r := row("in", "late")
	r.After = delay
	return r
}

// deletes is a unit that deletes a row of "in", and sends.
func deletes(l tablequeue.Lease, rows ...tablequeue.Row) *tablequeue.Unit {
	return &tablequeue.Unit{Verb: tablequeue.Delete, Queue: "in", Lease: l, Rows: rows}
}

func sending1(rows ...tablequeue.Row) *tablequeue.Unit { return &tablequeue.Unit{Rows: rows} }

func (w *world) flush(units ...*tablequeue.Unit) {
	w.Helper()
	w.ok(w.Queues.Flush(w.Context(), units))
}

// claim leases rows of a queue, and returns them in their order.
func (w *world) claim(c tablequeue.Claim) (rows []tablequeue.Claimed, next time.Duration) {
	w.Helper()
	if c.Queue == "" {
		c.Queue = "in"
	}
	if c.Owner == "" {
		c.Owner = "me"
	}
	rows, next, err := w.Queues.Claim(w.Context(), c, nil)
	w.ok(err)
	bySeq(rows)
	return rows, next
}

// claims leases n rows of "in" under a lease, waiting for them.
func (w *world) claims(lease int64, n int) (rows []tablequeue.Claimed) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	for len(rows) < n {
		got, _ := w.claim(tablequeue.Claim{Limit: n - len(rows), Lease: lease, For: long})
		if rows = append(rows, got...); len(got) == 0 && backoff.Sleep(ctx, 5*time.Millisecond) != nil {
			w.Fatalf("%d rows in %v, want %d", len(rows), patience, n)
		}
	}
	bySeq(rows)
	return rows
}

func bySeq(rows []tablequeue.Claimed) {
	slices.SortFunc(rows, func(a, b tablequeue.Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
}

// empty fails when a row of "in" is visible.
func (w *world) empty() {
	w.Helper()
	if rows, _ := w.claim(tablequeue.Claim{Limit: 10, Lease: 1, For: long}); len(rows) != 0 {
		w.Errorf("%d rows are visible, want none; the first: %+v", len(rows), rows[0])
	}
}

// stats checks the numbers of a queue's rows that are ready, leased and delayed.
func (w *world) stats(queue string, ready, unsettled, delayed int64) {
	w.Helper()
	s, err := w.Topology.Inspect(w.Context(), queue)
	w.ok(err)
	got, want := [3]int64{s.Ready, s.Unsettled, s.Delayed}, [3]int64{ready, unsettled, delayed}
	if s.Name != queue || got != want {
		w.Errorf("queue %q has %d ready, unsettled and delayed, want %d of %q", s.Name, got, want, queue)
	}
}

// lost checks which units have lost their lease.
func (w *world) lost(units []*tablequeue.Unit, want func(i int) bool) {
	w.Helper()
	for i, u := range units {
		if want := want(i); u.Lost != want {
			w.Errorf("unit %d: lost %v, want %v", i, u.Lost, want)
		}
	}
}

// idOf returns the id that [row] gave a message. The id of its row may be another.
func idOf(r tablequeue.Claimed) string {
	if id, ok := strings.CutPrefix(r.Headers, `{"k":"`); ok {
		return strings.TrimSuffix(id, `"}`)
	}
	return r.ID // headers of expired rows may be left out
}

func idsOf(rows []tablequeue.Claimed) (ids []string) {
	for _, r := range rows {
		ids = append(ids, idOf(r))
	}
	return ids
}

func (w *world) ids(rows []tablequeue.Claimed, want ...string) {
	w.Helper()
	if got := idsOf(rows); !slices.Equal(got, want) {
		w.Errorf("rows %q, want %q", got, want)
	}
}

func leaseOf(r tablequeue.Claimed, id int64) tablequeue.Lease {
	return tablequeue.Lease{Seq: r.Seq, ID: id}
}

// near fails unless the next row is due about then.
func (w *world) near(what string, want time.Duration) {
	w.Helper()
	if _, next := w.claim(tablequeue.Claim{Limit: 1, Lease: 1, For: long}); next > want || next < want-time.Minute {
		w.Errorf("%s: next in %v, want %v", what, next, want)
	}
}
