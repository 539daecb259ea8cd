package sqlserver

import (
	"database/sql/driver"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

func TestVerifySaysWhatUsersOfATableHaveToKnow(t *testing.T) {
	adopted := newAdoption("dbo", place{schema: "dbo", table: "q"}).adopted
	trigger := rowsOf([]driver.Value{"trigger", "audit", ""})
	const takenOver = "it was taken over from NServiceBus, which ignores leases and delays: its endpoint must not receive from it again"
	const older = `it is of version 1, which ServiceControl cannot read: "holdfast endpoint create --adopt" rewrites the table`
	for name, test := range map[string]struct {
		queue   transport.Queue
		columns answer
		adopted int64
		parts   answer
		want    []tablequeue.Remark
	}{
		"ours":               {transport.Queue{Name: "q"}, ours, 0, rowsOf(), nil},
		"ours and shared":    {transport.Queue{Name: "q", Shared: true}, ours, 0, rowsOf(), nil},
		"adopted":            {transport.Queue{Name: "q"}, ours, 1, rowsOf(), []tablequeue.Remark{{State: transport.Noted, Text: takenOver}}},
		"version 1":          {transport.Queue{Name: "q"}, firstColumns, 0, rowsOf(), nil},
		"shared version 1":   {transport.Queue{Name: "q", Shared: true}, firstColumns, 0, rowsOf(), []tablequeue.Remark{{State: transport.Differs, Text: older}}},
		"foreign":            {transport.Queue{Name: "q"}, nsbColumns, 0, rowsOf(), nil},
		"foreign and shared": {transport.Queue{Name: "q", Shared: true}, nsbColumns, 0, trigger, nil},
		"foreign elsewhere":  {transport.Queue{Name: "q@[dbo]@[other]"}, nsbColumns, 0, trigger, nil},
		"foreign and unfit": {transport.Queue{Name: "q"}, nsbColumns, 0, trigger, []tablequeue.Remark{
			{State: transport.Differs, Text: "its table is not as NServiceBus creates it, and is not adopted: found trigger [audit]"},
		}},
	} {
		_, s := newFake(t, map[string]answer{columnsPart: test.columns, adopted: numbers(test.adopted), kindPart: test.parts})
		got, err := s.Examine(t.Context(), test.queue)
		ok(t, err)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// ours are columns of a table of this version, as far as the driver looks at them.
var ours = column("RowVersion", "Id", "lease_id")
