package sqlserver

import (
	"context"
	"slices"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

var _ tablequeue.Examiner = (*store)(nil)

// Examine implements [tablequeue.Examiner]. The key of a row is a bigint in every table, so there
// is no warning about its range.
func (s *store) Examine(ctx context.Context, q transport.Queue) (all []tablequeue.Remark, err error) {
	columns, err := s.columns(ctx, q.Name)
	if err != nil {
		return nil, failed(err, "look at queue %q", q.Name)
	}
	at := s.place(q.Name)
	a := newAdoption(s.Schema, at)
	switch found := (traits{}).of(columns); {
	case found.foreign && (q.Shared || at.catalog != ""): // which are not adopted
		return nil, nil
	case found.foreign:
		parts, err := unfitParts(ctx, s.db, a.unfit)
		if err == nil && len(parts) > 0 {
			all = append(all, tablequeue.Remark{State: transport.Differs, Text: refusal(parts).Error()})
		}
		return all, failed(err, "look at queue %q", q.Name)
	case found.first && q.Shared:
		all = append(all, tablequeue.Remark{
			State: transport.Differs,
			Text:  `it is of version 1, which ServiceControl cannot read: "holdfast endpoint create --adopt" rewrites the table`,
		})
	}
	if q.Timers && slices.Contains(columns, "lease_id") && !slices.Contains(columns, "timer") {
		all = append(all, tablequeue.Remark{State: transport.Differs, Text: tablequeue.ErrNoTimers.Error()})
	}
	adopted, err := changed(ctx, s.db, a.adopted)
	if adopted > 0 {
		all = append(all, tablequeue.Remark{
			State: transport.Noted,
			Text:  "it was taken over from NServiceBus, which ignores leases and delays: its endpoint must not receive from it again",
		})
	}
	return all, failed(err, "look at queue %q", q.Name)
}
