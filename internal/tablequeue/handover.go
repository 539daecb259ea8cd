package tablequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.HandOverer = (*Conn)(nil)

const (
	handOverRows  = 500             // in one transaction
	handOverLocks = 2 * time.Minute // for a lock on the table: a vacuum may have it
)

var errNoHandOver = errors.New("the transport cannot hand queues over to NServiceBus")

// handOver is a queue that is handed over to an endpoint of NServiceBus.
type handOver struct {
	*Conn

	store    HandingOver
	queue    string
	forwards string // "" without that queue
	ended    bool   // the queue is one of NServiceBus already
	progress func(transport.HandOverProgress)
	state    transport.HandOverProgress
}

// HandOver implements [transport.HandOverer]. Each transaction leaves a state from which a repeated
// call goes on.
func (c *Conn) HandOver(
	ctx context.Context, queue string, progress func(transport.HandOverProgress),
) (transport.HandedOver, error) {
	store, ok := c.store.(HandingOver)
	if !ok {
		return transport.HandedOver{}, errNoHandOver
	}
	h := &handOver{Conn: c, store: store, queue: c.ShortName(queue), progress: progress}
	return ask(ctx, c, []string{h.queue}, h.run)
}

func (h *handOver) run(ctx context.Context) (done transport.HandedOver, err error) {
	if err := h.find(ctx); err != nil {
		return done, err
	}
	if done.Already = h.ended; h.ended && h.forwards == "" { // the output of an earlier call may have been lost
		done.Remaining, err = h.remaining(ctx)
		return done, err
	}
	if err := h.free(ctx); err != nil {
		return done, err
	}
	if err := h.store.PrepareHandOver(ctx, h.queue); err != nil {
		return done, err
	}
	if err := h.count(ctx); err != nil {
		return done, err
	}
	for _, from := range h.queues() {
		if err := h.moveFrom(ctx, from); err != nil {
			return done, err
		}
	}
	if !h.ended {
		if err := h.end(ctx); err != nil {
			return done, err
		}
	}
	done.Moved = h.state.Moved
	done.Remaining, err = h.remaining(ctx)
	return done, err
}

// find looks for the tables. Where an earlier call has ended the use of the queue, there may be
// messages left in that of forwards: a transaction that was open then has committed them.
func (h *handOver) find(ctx context.Context) error {
	foreign := h.Conn.store.Exists(ctx, h.queue)
	if unfit, ok := errors.AsType[*UnfitError](foreign); foreign != nil && (!ok || !unfit.Foreign) {
		return foreign
	}
	if err := h.findForwards(ctx); err != nil {
		return err
	}
	h.ended = foreign != nil
	return nil
}

func (h *handOver) findForwards(ctx context.Context) error {
	name := h.queue + ForwardsSuffix
	switch err := h.Conn.store.Exists(ctx, name); {
	case err == nil:
		h.forwards = name
	case !errors.Is(err, transport.ErrNoQueue):
		return err
	}
	return nil
}

// queues returns the queues of which messages are moved.
func (h *handOver) queues() (queues []string) {
	if h.forwards != "" {
		queues = append(queues, h.forwards)
	}
	if !h.ended {
		queues = append(queues, h.queue)
	}
	return queues
}

// free returns an error while messages are leased.
func (h *handOver) free(ctx context.Context) error {
	for _, queue := range h.queues() {
		holders, err := h.store.Holders(ctx, queue)
		if err != nil {
			return err
		}
		if len(holders) > 0 {
			return leasedError(queue, holders)
		}
	}
	return nil
}

func leasedError(queue string, holders []Holder) error {
	var rows int64
	var owners []string
	for _, o := range holders {
		rows += o.Rows
		owners = append(owners, fmt.Sprintf("%s (%d)", o.Owner, o.Rows))
	}
	return fmt.Errorf("queue %q: %d %w, by %s: stop all instances of the endpoint; the leases of a killed one run out by themselves",
		queue, rows, ErrLeased, strings.Join(owners, ", "))
}

// count sets the number of messages to be moved.
func (h *handOver) count(ctx context.Context) error {
	for _, queue := range h.queues() {
		s, err := h.Conn.store.Inspect(ctx, queue)
		if err != nil {
			return err
		}
		h.state.Total += s.Delayed
		if queue == h.forwards {
			h.state.Total += s.Ready
		}
	}
	return nil
}

// moveFrom moves the delayed messages of a queue, unless an instance begins to receive meanwhile.
func (h *handOver) moveFrom(ctx context.Context, from string) error {
	for {
		if err := h.free(ctx); err != nil {
			return err
		}
		var moved int
		err := h.patiently(ctx, func() (err error) {
			moved, err = h.store.MoveDelayed(ctx, h.queue, from, handOverRows, h.headers)
			return err
		})
		if err != nil || moved == 0 {
			return err
		}
		h.moved(moved)
	}
}

// patiently calls fn, which waits only briefly for locks, until it gets them.
func (h *handOver) patiently(ctx context.Context, fn func() error) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for began := time.Now(); ; {
		err := fn()
		if err == nil || errors.Is(err, ErrLeased) {
			return err
		}
		class := h.Conn.store.Classify(err)
		if class != Locked && class != Conflict || time.Since(began) > handOverLocks {
			return err
		}
		if pause.Wait(ctx) != nil {
			return err
		}
	}
}

func (h *handOver) moved(n int) {
	h.state.Moved += int64(n)
	h.progress(h.state)
}

// headers returns the headers of a message in a table of delayed messages. One without a
// destination is for the queue itself. Text that is no headers stays as it is.
func (h *handOver) headers(text string) string {
	headers, err := header.ParseJSON(text)
	if err != nil {
		return text
	}
	headers.SetDefault(header.ForwardDestination, h.Address(h.queue))
	return string(headers.AppendJSON(nil))
}

// end ends the use of the table as a queue of this engine.
func (h *handOver) end(ctx context.Context) error {
	var moved int
	err := h.patiently(ctx, func() (err error) {
		moved, err = h.store.EndHandOver(ctx, h.queue, h.headers)
		return err
	})
	if errors.Is(err, ErrLeased) {
		return cmp.Or(h.free(ctx), err)
	}
	if err == nil && moved > 0 {
		h.moved(moved)
	}
	return err
}

// remaining returns the other queues that have messages and may belong to the endpoint.
func (h *handOver) remaining(ctx context.Context) (all []transport.QueueStats, err error) {
	names, err := h.Conn.store.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name != h.queue+".quarantine" && name != h.queue+ForwardsSuffix && !strings.HasPrefix(name, h.queue+"-") {
			continue
		}
		s, err := h.Conn.store.Inspect(ctx, name)
		switch {
		case errors.Is(err, transport.ErrNoQueue):
		case err != nil:
			return nil, err
		case s.Ready+s.Unsettled+s.Delayed > 0:
			all = append(all, s)
		}
	}
	return all, nil
}
