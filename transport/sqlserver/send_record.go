package sqlserver

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// Numbers by which the server refuses a second row with one key.
const (
	duplicateKey   = 2627
	duplicateIndex = 2601
)

// errRival means that another transaction has recorded a key meanwhile. Repeated, the statement
// finds that key.
var errRival = errors.New("the message is handled at the same time elsewhere")

// recording is the units that one statement records, each with another key. A unit with the key of
// another is of a later recording, which finds that key unless the lease of the other was lost.
type recording struct {
	inbox string
	units []*tablequeue.Unit
}

func recordings(units []*tablequeue.Unit) (all []*recording) {
	for _, u := range units {
		if u.Key == nil {
			continue
		}
		i := slices.IndexFunc(all, func(r *recording) bool { return r.inbox == u.Inbox && r.of(u.Key.ID[:]) == nil })
		if i < 0 {
			i, all = len(all), append(all, &recording{inbox: u.Inbox})
		}
		all[i].units = append(all[i].units, u)
	}
	return all
}

// of returns the unit with the key id, or nil.
func (r *recording) of(id []byte) *tablequeue.Unit {
	for _, u := range r.units {
		if bytes.Equal(u.Key.ID[:], id) {
			return u
		}
	}
	return nil
}

// complete records the keys of r, settles the rows of the units whose key is new, and removes the
// keys of those whose lease is lost.
func (s *store) complete(ctx context.Context, o on, r *recording) error {
	if err := s.record(ctx, o, r); err != nil {
		return fmt.Errorf("record in inbox %q: %w", r.inbox, err)
	}
	if err := s.settleAll(ctx, o, executed(r.units)); err != nil {
		return err
	}
	if err := s.unrecord(ctx, o, r); err != nil {
		return fmt.Errorf("remove ids again from inbox %q: %w", r.inbox, err)
	}
	return nil
}

// record records the keys of r, and marks the units whose key is known.
func (s *store) record(ctx context.Context, o on, r *recording) error {
	keys := make([]transport.HandledKey, len(r.units))
	for i, u := range r.units {
		keys[i], u.Handled = *u.Key, true
	}
	err := each(ctx, o, func(rows *sql.Rows) error {
		var id []byte
		if err := rows.Scan(&id); err != nil {
			return err
		}
		u := r.of(id)
		if u == nil {
			return fmt.Errorf("the key %x was recorded, which is none of the batch", id)
		}
		u.Handled = false
		return nil
	}, s.inbox(r.inbox).record, keyed(keys))
	if n := numberOf(err); n == duplicateKey || n == duplicateIndex {
		err = fmt.Errorf("%w: %w", errRival, err)
	}
	return err
}

// unrecord removes the keys of those units whose lease is lost.
func (s *store) unrecord(ctx context.Context, o on, r *recording) error {
	var keys []transport.HandledKey
	for _, u := range r.units {
		if u.Lost {
			keys = append(keys, *u.Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	n, err := changed(ctx, o, s.inbox(r.inbox).forgetKeys, keyed(keys))
	if err == nil && n != int64(len(keys)) {
		err = fmt.Errorf("%d of %d keys were removed again", n, len(keys))
	}
	return err
}
