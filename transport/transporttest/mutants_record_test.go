package transporttest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// recorded notes what a delivery is to record, for completions that do it by themselves.
type recorded struct {
	mu   sync.Mutex // guards what follows
	keys map[*faultyDelivery]transport.OutboxEntry
}

// noteRecords has f note what deliveries are to record, so that inmemory records nothing.
func noteRecords(f *faulty) *recorded {
	r := &recorded{keys: map[*faultyDelivery]transport.OutboxEntry{}}
	f.record = func(d *faultyDelivery, inbox string, key *transport.HandledKey) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.keys[d] = transport.OutboxEntry{Inbox: inbox, Key: key}
	}
	return r
}

func (r *recorded) of(d *faultyDelivery) transport.OutboxEntry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys[d]
}

var recordMutants = []mutant{
	{"record-completed", "no key is recorded", func(f *faulty) {
		f.record = func(*faultyDelivery, string, *transport.HandledKey) {}
	}},
	{"record-completed", "Complete records no key", settling("Complete", func(ctx context.Context, d *faultyDelivery) error {
		d.whole.RecordHandled("", nil)
		return d.whole.Complete(ctx)
	})},
	{"record-completed", "a transaction records no key", func(f *faulty) {
		f.commit = func(ctx context.Context, tx *faultyTx, ops []transport.Operation) error {
			tx.d.whole.RecordHandled("", nil)
			return tx.Tx.Complete(ctx, ops)
		}
	}},
	{"record-duplicate", "a duplicate is settled", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			err := sound(ctx)
			if errors.Is(err, transport.ErrAlreadyHandled) {
				d.whole.RecordHandled("", nil)
				err = errors.Join(err, d.whole.Complete(ctx))
			}
			return err
		}
	}},
	{"record-duplicate", "a duplicate sends its messages", func(f *faulty) {
		f.completeWith = func(ctx context.Context, d *faultyDelivery, ops []transport.Operation) error {
			err := d.whole.CompleteWith(ctx, ops)
			if errors.Is(err, transport.ErrAlreadyHandled) {
				_, sent := d.receiver.conn.sound.Dispatch(ctx, ops)
				err = errors.Join(err, sent)
			}
			return err
		}
	}},
	{"record-duplicate", "a key cannot be taken back", func(f *faulty) {
		f.record = func(d *faultyDelivery, inbox string, key *transport.HandledKey) {
			if key != nil {
				d.whole.RecordHandled(inbox, key)
			}
		}
	}},
	{"record-at-once", "the key is looked up before the delivery is completed", func(f *faulty) {
		r := noteRecords(f)
		settling("Complete", func(ctx context.Context, d *faultyDelivery) error {
			e, c := r.of(d), d.receiver.conn.sound
			if e.Key != nil {
				states, err := c.FindHandled(ctx, e.Inbox, []transport.HandledKey{*e.Key})
				if err != nil || states[0] != transport.NotHandled {
					return errors.Join(err, transport.ErrAlreadyHandled)
				}
				<-time.After(time.Millisecond)
				if err := c.Store(ctx, e); err != nil && !errors.Is(err, transport.ErrAlreadyHandled) {
					return err
				}
			}
			return d.whole.Complete(ctx)
		})(f)
	}},
	{"record-none", "a retried delivery records its key", func(f *faulty) {
		r := noteRecords(f)
		settling("Retry", func(ctx context.Context, d *faultyDelivery) error {
			return errors.Join(d.receiver.conn.sound.Store(ctx, r.of(d)), d.whole.Retry(ctx))
		})(f)
	}},
	{"record-none", "the key is recorded at once", func(f *faulty) {
		f.record = func(d *faultyDelivery, inbox string, key *transport.HandledKey) {
			_ = d.receiver.conn.sound.Store(context.Background(), transport.OutboxEntry{Inbox: inbox, Key: key})
		}
	}},
	{"record-none", "a later delivery has the key", func(f *faulty) {
		keys := map[string]*transport.HandledKey{}
		f.record = func(d *faultyDelivery, _ string, key *transport.HandledKey) {
			if key != nil {
				keys[d.id()] = key
			}
		}
		f.install = installNoting
		settling("Complete", func(ctx context.Context, d *faultyDelivery) error {
			d.whole.RecordHandled(f.installed(), keys[d.id()])
			return d.whole.Complete(ctx)
		})(f)
	}},
	{"record-refused", "a refused completion records the key", func(f *faulty) {
		r := noteRecords(f)
		f.completeWith = func(ctx context.Context, d *faultyDelivery, ops []transport.Operation) error {
			return errors.Join(d.whole.CompleteWith(ctx, ops), d.receiver.conn.sound.Store(ctx, r.of(d)))
		}
	}},
	{"record-refused", "a completion that fails takes the key back", func(f *faulty) {
		f.completeWith = func(ctx context.Context, d *faultyDelivery, ops []transport.Operation) error {
			err := d.whole.CompleteWith(ctx, ops)
			d.whole.RecordHandled("", nil)
			return err
		}
	}},
	{"record-missing", "a delivery whose inbox is missing is completed", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			err := sound(ctx)
			if errors.Is(err, transport.ErrNoQueue) {
				d.whole.RecordHandled("", nil)
				err = errors.Join(err, d.whole.Complete(ctx))
			}
			return err
		}
	}},
	{"record-lease-lost", "an older delivery records its key", func(f *faulty) {
		r := noteRecords(f)
		settling("Complete", func(ctx context.Context, d *faultyDelivery) error {
			return errors.Join(d.whole.Complete(ctx), d.receiver.conn.sound.Store(ctx, r.of(d)))
		})(f)
	}},
}
