package tablequeue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

// Messages that are dispatched in a user's transaction are inserted in that transaction
// only.
func TestAUsersTransactionGetsTheInsertAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a", "b")
		f.subs = []Subscription{{Type: "T", Queue: "a"}, {Type: "T", Queue: "b"}}
		c := open(t, f)
		tx := &usersTx{}
		delayed := op("b", "delayed")
		delayed.After = time.Hour
		published := transport.Operation{Message: msg("published"), Types: []string{"T"}, After: time.Hour}
		receipts, err := c.DispatchIn(t.Context(), tx, []transport.Operation{op("a", "plain"), delayed, published})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]transport.Receipt{{}, {Cancel: "2@b"}, {}}, receipts); diff != "" {
			t.Errorf("receipts (-want +got):\n%s", diff)
		}
		var got []string
		for _, r := range tx.rows {
			got = append(got, r.Queue+" "+r.ID)
		}
		if diff := cmp.Diff([]string{"a plain", "b delayed", "a published", "b published"}, got); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		if f.count("a")+f.count("b") != 0 || f.callsOf("flush") != 0 {
			t.Errorf("messages were inserted outside the transaction: %v", f.calls)
		}
	})
}

// A refusal in a user's transaction names the operations that are refused.
func TestARefusalInAUsersTransactionNamesOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, newFake("a"))
		tx := &usersTx{}
		_, err := c.DispatchIn(t.Context(), tx, []transport.Operation{op("a", "1"), op("missing", "2"), op("missing", "3")})
		if diff := cmp.Diff([]int{1, 2}, failedOps(t, err)); diff != "" {
			t.Errorf("failed operations (-want +got):\n%s", diff)
		}
		isErr(t, err, transport.ErrNoQueue)
		if _, err := c.DispatchIn(t.Context(), "no transaction", nil); err == nil {
			t.Error("what is no transaction was accepted")
		}
		if len(tx.rows) != 0 {
			t.Errorf("%d rows were inserted", len(tx.rows))
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = c.DispatchIn(t.Context(), tx, []transport.Operation{op("a", "late")})
		isErr(t, err, transport.ErrClosed)
	})
}
