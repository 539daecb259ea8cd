package sqlserver

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

const movePart = "DECLARE @moved TABLE"

func TestATableOfDelayedMessagesIsKnownByItsColumns(t *testing.T) {
	for name, test := range map[string]struct {
		answer answer
		found  bool
		unfit  bool
	}{
		"none":           {numbers(-1), false, false},
		"NServiceBus's":  {numbers(3), true, false},
		"another":        {numbers(2), false, true},
		"without a look": {serverError(229, 14), false, false},
	} {
		_, s := newFake(t, map[string]answer{"[Net.Peer.Delayed]": test.answer})
		found, err := s.HasDelayed(t.Context(), "Net.Peer")
		_, unfit := errors.AsType[*tablequeue.UnfitError](err)
		if found != test.found || unfit != test.unfit || (err != nil) != (test.answer.err != nil || test.unfit) {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
}

// Due messages of NServiceBus are moved in one transaction.
func TestDueOfNServiceBusMoveAtOnce(t *testing.T) {
	f, s := newFake(t, map[string]answer{movePart: rowsOf([]driver.Value{int64(2), int64(1_500_000)})})
	moved, next, err := s.MoveDue(t.Context(), "in", 100)
	if err != nil || moved != 2 || next != 1500*time.Millisecond {
		t.Errorf("moved %d, next in %v, %v", moved, next, err)
	}
	calls := f.take()
	if len(calls) != 3 || calls[0].text != "begin" || calls[2].text != "commit" || !strings.HasPrefix(calls[1].text, lockWait) ||
		calls[1].args["limit"] != 100 {
		t.Fatalf("%+v", calls)
	}
	for _, part := range []string{"[dbo].[in.Delayed] WITH (UPDLOCK, READPAST, ROWLOCK", "Due < @now ORDER BY Due", "@now datetime = getutcdate()", "INSERT INTO [dbo].[in] (Headers, Body)"} {
		if !strings.Contains(calls[1].text, part) {
			t.Errorf("no %s in %s", part, calls[1].text)
		}
	}
	f.answers[movePart] = rowsOf([]driver.Value{int64(0), int64(251_000_000_000_000_000)}) // until the year 9999
	if _, next, err := s.MoveDue(t.Context(), "in", 100); err != nil || next != 24*time.Hour {
		t.Errorf("next in %v, %v", next, err)
	}
	f.answers[movePart] = serverError(invalidObject, 16)
	_, _, err = s.MoveDue(t.Context(), "in", 100)
	isErr(t, err, transport.ErrNoQueue)
	f.answers[movePart], f.answers["commit"] = rowsOf([]driver.Value{int64(2), int64(0)}), answer{err: io.EOF}
	if moved, _, err := s.MoveDue(t.Context(), "in", 100); err == nil || moved != 0 {
		t.Errorf("moved %d without a commit, %v", moved, err)
	}
}

// The rows of the recording that wait in the sender's table name the queue that they are for.
func TestAMessageOfNServiceBusForAnotherQueueIsSentOn(t *testing.T) {
	headers := func(to string) string {
		return fmt.Sprintf(`{"NServiceBus.MessageId":"m","NServiceBus.SqlServer.ForwardDestination":%q}`, to)
	}
	row := func(seq int64, to string) []driver.Value {
		return []driver.Value{seq, anID, headers(to), []byte("{}"), int64(1), int64(0)}
	}
	_, s := newFake(t, map[string]answer{
		columnsPart: column("RowVersion", "Id", "lease_id"), movePart: rowsOf([]driver.Value{int64(0), int64(0)}), "[in.Delayed]": numbers(-1),
		claimPart: rowsOf(row(1, "in"), row(2, "in@[dbo]"), row(3, "IN@[dbo]@[shop]"), row(4, "in@[nsb]@[shop]"), row(5, "out@[dbo]@[shop]")),
	})
	c := tablequeue.Open(s.parts(), tablequeue.Config{Env: transport.Env{Endpoint: "in"}})
	defer func() { ok(t, c.Close()) }()
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "in"})
	ok(t, err)
	ds, err := r.Receive(t.Context(), 5)
	ok(t, err)
	var to []string
	for _, d := range ds {
		relayed := "handled"
		if ops := d.(transport.Relayer).Relay(); len(ops) > 0 {
			relayed = ops[0].Queue
		}
		to = append(to, relayed)
		if _, found := d.Message().Headers.Lookup(header.ForwardDestination); found {
			t.Error("the destination is still a header")
		}
	}
	if got, want := fmt.Sprint(to), "[handled handled IN@[dbo]@[shop] in@[nsb]@[shop] out@[dbo]@[shop]]"; got != want {
		t.Errorf("sent on to %s, want %s", got, want)
	}
}

// A delayed message for NServiceBus waits in the tables of its sender.
func TestDelayedForNServiceBusWaitsHere(t *testing.T) {
	answers := foreignAnswers()
	answers["'[dbo].[in]', N'U')"] = column("RowVersion", "Id", "lease_id")
	answers["'[dbo].[in.forwards]', N'U')"] = column("RowVersion", "Id", "lease_id")
	answers["INSERT INTO [dbo].[in.forwards]"] = numbers(4)
	answers["[in.Delayed]"] = numbers(-1)
	f, s := newFake(t, answers)
	c := tablequeue.Open(s.parts(), tablequeue.Config{Env: transport.Env{Endpoint: "in"}})
	defer func() { ok(t, c.Close()) }()
	_, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "in"})
	ok(t, err)
	op := transport.Operation{Queue: "foreign", Message: &transport.Message{ID: "m"}, After: time.Minute}
	for range 2 { // when it is not known that the table is foreign, and when it is
		f.take()
		receipts, err := c.Dispatch(t.Context(), []transport.Operation{op})
		ok(t, err)
		if len(receipts) != 1 || receipts[0].Cancel != "4@in.forwards" {
			t.Errorf("receipts %+v", receipts)
		}
		kept := 0
		for _, call := range f.take() {
			rows, _ := call.args["rows"].(mssql.NVarCharMax)
			if strings.Contains(call.text, "INSERT INTO [dbo].[in.forwards]") {
				kept++
				if !strings.Contains(string(rows), `"NServiceBus.SqlServer.ForwardDestination":"foreign@[dbo]@[shop]"`) || !strings.Contains(string(rows), `"after_us":60000000`) {
					t.Errorf("rows %s", rows)
				}
			}
		}
		if kept != 1 {
			t.Errorf("kept %d times", kept)
		}
	}
}
