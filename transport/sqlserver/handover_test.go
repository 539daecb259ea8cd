package sqlserver

import (
	"database/sql/driver"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

func same(text string) string { return text }

// handedOver answers as a server with the queue "in" and no table of delayed messages.
func handedOver() map[string]answer {
	left := numbers(0)
	three := numbers(2)
	three.then = &left
	found := rowsOf([]driver.Value{int64(7), `{"a":"1"}`}, []driver.Value{int64(9), `{"a":"2"}`})
	none := rowsOf()
	found.then = &none
	return map[string]answer{
		"'[dbo].[in]', N'U')":             ours,
		"[in.Delayed]', N'U') IS NULL":    numbers(-1),
		"READUNCOMMITTED":                 rowsOf(),
		"SELECT TOP (@limit) RowVersion,": found,
		"DECLARE @gone TABLE":             three,
		"SELECT count_big(*) FROM [dbo]":  numbers(0),
	}
}

func TestTheHoldersOfLeasesAreNamed(t *testing.T) {
	_, s := newFake(t, map[string]answer{"READUNCOMMITTED": rowsOf([]driver.Value{"in/one/0", int64(2)}, []driver.Value{"in/two/1", int64(1)})})
	got, err := s.Holders(t.Context(), "in")
	ok(t, err)
	if diff := cmp.Diff([]tablequeue.Holder{{Owner: "in/one/0", Rows: 2}, {Owner: "in/two/1", Rows: 1}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestDelayedMessagesAreMovedWithNewHeaders(t *testing.T) {
	f, s := newFake(t, handedOver())
	n, err := s.MoveDelayed(t.Context(), "in", "in", 500, func(text string) string { return strings.ToUpper(text) })
	if err != nil || n != 2 {
		t.Fatalf("moved %d, %v", n, err)
	}
	calls := f.take()
	if len(calls) != 4 || calls[0].text != "begin" || calls[3].text != "commit" {
		t.Fatalf("%+v", calls)
	}
	if calls[1].args["limit"] != 500 {
		t.Errorf("limit %v", calls[1].args["limit"])
	}
	if diff := cmp.Diff(mssql.NVarCharMax(`[[7,"{\"A\":\"1\"}"],[9,"{\"A\":\"2\"}"]]`), calls[2].args["rows"]); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{"FROM [dbo].[in] WITH (UPDLOCK", "visible_at > sysutcdatetime() AND lease_id IS NULL"} {
		if !strings.Contains(calls[1].text, part) {
			t.Errorf("no %s in %s", part, calls[1].text)
		}
	}
	if n, err := s.MoveDelayed(t.Context(), "in", "in", 500, same); err != nil || n != 0 {
		t.Errorf("moved %d of none, %v", n, err)
	}
	f.answers["SELECT TOP (@limit) RowVersion,"] = rowsOf([]driver.Value{int64(7), `{}`})
	if _, err := s.MoveDelayed(t.Context(), "in", "in.forwards", 500, same); err == nil || !strings.Contains(err.Error(), "0 of 1 messages were moved") {
		t.Errorf("a message that another has taken: %v", err)
	}
	calls = f.take()
	if last := calls[len(calls)-1].text; last != "rollback" {
		t.Errorf("ended with %s", last)
	}
	if find := calls[len(calls)-3].text; !strings.Contains(find, "FROM [dbo].[in.forwards]") || !strings.Contains(find, "WHERE NOT (lease_id IS NOT NULL AND visible_at > sysutcdatetime())") {
		t.Errorf("of forwards not all are moved: %s", find)
	}
}

func TestAQueueThatCannotBeHandedOverIsUnfit(t *testing.T) {
	for name, test := range map[string]struct {
		queue   string
		answers map[string]answer
		want    string
	}{
		"version 1":     {"in", map[string]answer{columnsPart: firstColumns}, "--adopt"},
		"long":          {strings.Repeat("q", 121), nil, "too long"},
		"another table": {"in", map[string]answer{"'[dbo].[in]', N'U')": ours, "[in.Delayed]', N'U') IS NULL": numbers(1)}, "Headers nvarchar, Body varbinary"},
	} {
		f, s := newFake(t, test.answers)
		err := s.PrepareHandOver(t.Context(), test.queue)
		if _, unfit := errors.AsType[*tablequeue.UnfitError](err); !unfit || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v", name, err)
		}
		for _, c := range f.take() {
			if c.text == "begin" || strings.Contains(c.text, "UPDATE") {
				t.Errorf("%s: changed by %s", name, c.text)
			}
		}
	}
}

func TestTheEndOfAHandOverIsOneTransactionUnderALock(t *testing.T) {
	f, s := newFake(t, handedOver())
	h := s.handOver("in")
	f.answers[h.end] = answer{then: &answer{}}
	moved, err := s.EndHandOver(t.Context(), "in", same)
	if err != nil || moved != 2 {
		t.Fatalf("moved %d, %v", moved, err)
	}
	calls := f.take()
	texts := bodies(calls)
	if texts[0] != "begin" || texts[1] != h.lock || texts[2] != h.leased || !slices.Equal(texts[len(texts)-4:len(texts)-1], []string{h.end, s.table("in").forget, "commit"}) {
		t.Fatalf("asked %q", texts)
	}
	for _, c := range calls[1 : len(calls)-2] {
		if !c.tx || !strings.HasPrefix(c.text, "SET XACT_ABORT ON; SET LOCK_TIMEOUT 50;") {
			t.Errorf("waits for locks, or is outside the transaction: %s", c.text)
		}
	}
	for name, a := range map[string]struct {
		part   string
		answer answer
		want   func(error) bool
	}{
		"a lease": {"SELECT count_big(*) FROM [dbo]", numbers(1), func(err error) bool { return errors.Is(err, tablequeue.ErrLeased) }},
		"a lock":  {"TABLOCKX", serverError(lockTimeoutExceeded, 16), func(err error) bool { return s.Classify(err) == tablequeue.Locked }},
	} {
		f, s := newFake(t, handedOver())
		f.answers[a.part] = a.answer
		if _, err := s.EndHandOver(t.Context(), "in", same); !a.want(err) {
			t.Errorf("%s: error %v", name, err)
		}
		texts := bodies(f.take())
		if texts[len(texts)-1] != "rollback" || slices.Contains(texts, h.end) {
			t.Errorf("%s: asked %q", name, texts)
		}
	}
}

func TestAQueueIsHandedOverByTheEngine(t *testing.T) {
	f, s := newFake(t, handedOver())
	h := s.handOver("in")
	c := tablequeue.Open(s.parts(), tablequeue.Config{Env: transport.Env{Endpoint: "in"}})
	f.answers["count_big(CASE"] = rowsOf([]driver.Value{int64(1), int64(0), int64(2), int64(0)})
	done, err := c.HandOver(t.Context(), "in@[dbo]@[shop]", func(transport.HandOverProgress) {})
	if err != nil || done.Moved != 2 {
		t.Errorf("handed over %+v, %v", done, err)
	}
	texts := bodies(f.take())
	for _, part := range []string{h.holders, h.fill, h.create, h.lock, h.end} {
		if !slices.Contains(texts, part) {
			t.Errorf("not asked: %s", part)
		}
	}
	ok(t, c.Close())
}

// An instance that stops after the hand-over has no leases any more.
func TestAHandedOverQueueNeedsNoReleases(t *testing.T) {
	_, s := newFake(t, map[string]answer{"lease_owner = @owner": serverError(invalidColumn, 16)})
	ok(t, s.Abandon(t.Context(), "in", "me", 0))
}
