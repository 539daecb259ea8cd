package inmemory

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.InboxInspector = (*conn)(nil)

// inbox is a record of handled messages, guarded by broker.mu. Ids that are old are removed before
// each access.
type inbox struct {
	handled map[[16]byte]handled
	order   []recorded // as they were recorded; also ids that were forgotten since
}

type handled struct {
	sum uint32
	at  time.Time
}

type recorded struct {
	id [16]byte
	at time.Time
}

// bytesPerID is the size of an id in inbox, without the free space of the map.
const bytesPerID = 16 + 32 + 40

func (in *inbox) state(key transport.HandledKey) transport.HandledState {
	switch h, ok := in.handled[key.ID]; {
	case !ok:
		return transport.NotHandled
	case h.sum != key.Sum:
		return transport.HandledOther
	default:
		return transport.Handled
	}
}

// forgetBefore removes the ids that were recorded before a time.
func (in *inbox) forgetBefore(oldest time.Time) {
	for len(in.order) > 0 && in.order[0].at.Before(oldest) {
		first := in.order[0]
		in.order = in.order[1:]
		if in.handled[first.id].at.Equal(first.at) { // it was not forgotten and recorded again
			delete(in.handled, first.id)
		}
	}
}

// inboxStore is the part of a conn with the ids of handled messages.
type inboxStore struct{ *core }

func (is *inboxStore) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) (states []transport.HandledState, err error) {
	err = is.call(ctx, "FindHandled", inbox, func() error {
		in, err := is.inbox(inbox)
		if err != nil {
			return err
		}
		states = make([]transport.HandledState, len(keys))
		for i, key := range keys {
			states[i] = in.state(key)
		}
		return nil
	})
	return states, err
}

func (is *inboxStore) InspectInbox(ctx context.Context, inbox string) (stats transport.InboxStats, err error) {
	err = is.call(ctx, "InspectInbox", inbox, func() error {
		in, err := is.inbox(inbox)
		if err != nil {
			return err
		}
		stats = transport.InboxStats{Name: inbox, Rows: int64(len(in.handled))}
		stats.Bytes = stats.Rows * bytesPerID
		for _, h := range in.handled {
			age := time.Since(h.at)
			stats.Oldest = max(stats.Oldest, age)
			if age <= time.Hour {
				stats.LastHour++
			}
		}
		return nil
	})
	return stats, err
}

func (is *inboxStore) ForgetHandled(ctx context.Context, inbox string, keys []transport.HandledKey) (n int, err error) {
	err = is.call(ctx, "ForgetHandled", inbox, func() error {
		in, err := is.inbox(inbox)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if _, ok := in.handled[key.ID]; ok {
				delete(in.handled, key.ID)
				n++
			}
		}
		return nil
	})
	return n, err
}
