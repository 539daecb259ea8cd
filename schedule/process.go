package schedule

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/strictjson"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// silentAfter is the time without a sign of a process after which another process may decide on
	// the plans of the first.
	silentAfter = 15 * time.Minute
	// keepProcess is the time for which the record of a process that crashed is kept.
	keepProcess = time.Hour
)

// process is a process with schedules: the contents of the record that the process renews with each
// comparison. The record is an ended one, so that the database removes the record of a process that
// crashed. All times are by the clock of the database.
type process struct {
	ID    string
	Began time.Time // the time of the first comparison
	Seen  time.Time // the time of the last comparison
	Specs []string  // see hashOf; sorted
}

// hashOf returns a hash of a schedule with its spec.
func hashOf(schedule, spec string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", schedule, spec))
	return fmt.Sprintf("%x", sum[:8])
}

// has reports whether the process has a schedule with that spec.
func (p *process) has(schedule, spec string) bool {
	_, found := slices.BinarySearch(p.Specs, hashOf(schedule, spec))
	return found
}

// lives reports whether the process has given a sign lately.
func (p *process) lives(now time.Time) bool { return now.Sub(p.Seen) <= silentAfter }

// compare returns a negative number if the process began before another one. The ids decide between
// equal times.
func (p *process) compare(other *process) int {
	if c := p.Began.Compare(other.Began); c != 0 {
		return c
	}
	return strings.Compare(p.ID, other.ID)
}

func processOf(r transport.Record) (p process, err error) {
	if err := strictjson.Unmarshal(r.Meta, &p); err != nil {
		return p, fmt.Errorf("the record of process %q is damaged: %w", r.Name.Key, err)
	}
	return p, nil
}

// newProcess returns this process, with hashes of its specs.
func newProcess(specs []string) *process {
	slices.Sort(specs)
	return &process{ID: uuid.New(time.Now()), Specs: specs}
}

// renew stores a sign of the process.
func (p *process) renew(ctx context.Context, db stateful.Database) error {
	now := db.Now().UTC()
	if p.Began.IsZero() {
		p.Began = now
	}
	p.Seen = now
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	name := nameOf(db.Endpoint, kindProcesses, p.ID)
	return db.Change(ctx, func(store transport.StateStore) ([]transport.Operation, error) {
		r, err := store.Load(ctx, saga.ID(db.Endpoint, kindProcesses, p.ID), &name)
		if err != nil {
			return nil, err
		}
		r.Meta, r.Status, r.Keep = text, transport.RecordEnded, keepProcess
		return nil, store.Save(ctx, r)
	})
}

// end removes the record of the process.
func (p *process) end(ctx context.Context, db stateful.Database) error {
	err := db.RemoveRecord(ctx, saga.ID(db.Endpoint, kindProcesses, p.ID))
	if errors.Is(err, transport.ErrNoRecord) {
		return nil
	}
	return err
}

// pageOfProcesses is the number of processes that one statement reads.
const pageOfProcesses = 500

// livingIn returns the processes of an endpoint that have given a sign lately.
func livingIn(ctx context.Context, db stateful.Database) (living []process, err error) {
	page := transport.RecordPage{Kind: nameOf(db.Endpoint, kindProcesses, "").Kind, Limit: pageOfProcesses}
	for {
		records, err := db.Records(ctx, page)
		if err != nil {
			return nil, err
		}
		now := db.Now()
		for _, r := range records {
			p, err := processOf(r)
			if err != nil {
				return nil, err
			}
			if p.lives(now) {
				living = append(living, p)
			}
		}
		if len(records) < page.Limit {
			return living, nil
		}
		page.After = records[len(records)-1].Name.Key
	}
}

// livingHolder returns the process whose spec a plan has, read in the transaction of store. It
// returns nil if that process is silent, and for a plan that a process of an older version has
// changed.
func livingHolder(ctx context.Context, store jobStore, schedule string, of *plan, now time.Time) (*process, error) {
	if of.Process == "" {
		return nil, nil
	}
	r, err := store.Load(ctx, saga.ID(store.endpoint, kindProcesses, of.Process), nil)
	if errors.Is(err, transport.ErrNoRecord) {
		return nil, nil
	}
	if err != nil {
		return nil, stateful.Failed(err)
	}
	p, err := processOf(r)
	if err != nil || !p.lives(now) || !p.has(schedule, of.Spec) {
		return nil, err
	}
	return &p, nil
}
