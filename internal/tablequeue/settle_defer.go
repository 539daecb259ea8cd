package tablequeue

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Deferrer = (*delivery)(nil)
	_ transport.Hastener = (*Conn)(nil)
)

// Defer implements [transport.Deferrer]. The handle is the number of the row.
func (d *delivery) Defer(ctx context.Context, after time.Duration) (handle string, err error) {
	if err := d.settle(ctx, Unit{Verb: Release, After: after}, nil); err != nil {
		return "", err
	}
	return strconv.FormatInt(d.lease.Seq, 10), nil
}

// Hasten implements [transport.Hastener].
func (c *Conn) Hasten(ctx context.Context, queue string, handles []string) error {
	store, ok := c.store.(Hastener)
	if !ok {
		return nil
	}
	queue = c.ShortName(queue)
	seqs := make([]int64, 0, len(handles))
	for _, handle := range handles {
		if seq, err := strconv.ParseInt(handle, 10, 64); err == nil {
			seqs = append(seqs, seq)
		}
	}
	for part := range slices.Chunk(seqs, hastenRows) {
		_, err := ask(ctx, c, nil, func(ctx context.Context) (struct{}, error) { return struct{}{}, store.Hasten(ctx, queue, part) })
		if err != nil {
			return err
		}
		c.wakes.announce(queue)
	}
	return nil
}
