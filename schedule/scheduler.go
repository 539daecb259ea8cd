package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// Config configures a [Scheduler].
type Config struct {
	// Schedules are the schedules of the endpoint. All of its instances have the same.
	Schedules []Schedule
	// Keep is the time for which jobs are kept that have ended. Default: 30 days.
	Keep time.Duration
}

const defaultKeep = 30 * 24 * time.Hour

// Scheduler runs the schedules of an endpoint and keeps the states of its jobs. It belongs to one
// endpoint, and is safe for concurrent use.
type Scheduler struct {
	schedules map[string]*Schedule
	order     []string // their names
	keep      time.Duration
	returned  returnedRuns
	live      atomic.Pointer[host]
	ready     chan struct{} // closed when live is set
	applied   bool
}

// host is the running endpoint of a scheduler. Its name and its log are known when it runs: the
// configuration may change between Apply and endpoint.New.
type host struct {
	*endpoint.Endpoint
	name string
	log  *slog.Logger
}

// New returns a scheduler. It fails with all mistakes in c, joined. Without schedules it keeps the
// states of jobs alone.
func New(c Config) (*Scheduler, error) {
	s := &Scheduler{schedules: map[string]*Schedule{}, keep: cmp.Or(c.Keep, defaultKeep), ready: make(chan struct{})}
	var errs []error
	if c.Keep < 0 {
		errs = append(errs, fmt.Errorf("schedule: Keep is negative: %v; 0 is 30 days", c.Keep))
	}
	for _, given := range c.Schedules {
		errs = append(errs, given.validate())
		if s.schedules[given.Name] != nil {
			errs = append(errs, fmt.Errorf("schedule %.200q: two schedules have that name", given.Name))
		}
		s.schedules[given.Name] = &given
		s.order = append(s.order, given.Name)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

var errTwice = errors.New("the scheduler belongs to another endpoint already: make one for each endpoint")

// Apply adds to the configuration of an endpoint: its messages, its handlers, behaviors named
// "schedule" in the stages Logical and Recover, and a function of Config.Background. It is called
// once, before [endpoint.New]. The behaviors of the configuration so far are outside of its own.
func (s *Scheduler) Apply(cfg *endpoint.Config) {
	handlers := s.saga().Handlers()
	if s.applied {
		handlers[0] = handlers[0].Stateful(stateful.Declaration{Err: errTwice}) // New of the endpoint reports it
	}
	s.applied = true
	for _, name := range s.order {
		handlers[0] = handlers[0].SendsLocal(s.schedules[name].Message)
	}
	cfg.Messages = append(cfg.Messages[:len(cfg.Messages):len(cfg.Messages)], messages()...)
	cfg.Handlers = append(cfg.Handlers[:len(cfg.Handlers):len(cfg.Handlers)], handlers...)
	cfg.Pipeline.Logical.Use("schedule", s.runJobs)
	cfg.Pipeline.Recover.Use("schedule", s.recoverJobs)
	cfg.Background = append(cfg.Background[:len(cfg.Background):len(cfg.Background)], s.background)
}

// running returns the endpoint, once it is ready: its first messages may be earlier.
func (s *Scheduler) running(ctx context.Context) (*host, error) {
	select {
	case <-s.ready:
		return s.live.Load(), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// now returns the time by the clock of the database.
func (s *Scheduler) now() time.Time {
	if ep := s.live.Load(); ep != nil {
		if db, err := ep.Database(); err == nil {
			return db.Now().UTC()
		}
	}
	return time.Now().UTC()
}

// storeOf returns the jobs in the transaction of a handler.
func (s *Scheduler) storeOf(ctx context.Context, session *endpoint.Session) (jobStore, error) {
	tx, err := session.Tx(ctx)
	if err != nil {
		return jobStore{}, err
	}
	store, ok := transport.TxOf[transport.StateStore](tx)
	if !ok {
		return jobStore{}, errors.New("the transaction of the message stores no jobs")
	}
	return jobStore{store, s.live.Load().name, s.keep}, nil
}

// typeOf returns the name of the Go type of a message.
func typeOf(m any) string { return structOf(reflect.TypeOf(m)).String() }

// structOf returns the type that a pointer type points to, or t.
func structOf(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// plansOf is the kind of the records of plans.
func plansOf(endpoint string) string { return nameOf(endpoint, kindPlans, "").Kind }

// planID is the id of the record of a plan.
func planID(endpoint, schedule string) transport.RecordID {
	return saga.ID(endpoint, kindPlans, schedule)
}
