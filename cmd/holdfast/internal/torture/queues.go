package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// workQueues are those that are empty in the end. The endpoint has a queue of timers in the mode
// Atomic.
func (r *run) workQueues() []string {
	queues := []string{r.Name, r.Name + ".quarantine"}
	if r.Mode == Atomic {
		queues = append(queues, r.outbox())
	}
	return queues
}

// inspect returns the number of messages in the work queues, and how long it has to be 0 for the
// run to end: a broker that does not count leased or delayed messages has to show them first.
func (r *run) inspect(ctx context.Context) (left int64, quiet time.Duration, err error) {
	quiet = time.Second
	for _, name := range r.workQueues() {
		stats, err := r.conn.(transport.Inspector).Inspect(ctx, name) //nolint:errcheck // Run has checked it
		if errors.Is(err, transport.ErrNoQueue) && name != r.Name {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("inspect: %w", err)
		}
		left += max(0, stats[0].Ready) + max(0, stats[0].Unsettled) + max(0, stats[0].Delayed)
		if stats[0].Unsettled < 0 {
			quiet = max(quiet, time.Second+r.conn.Limits().Lease)
		}
		if stats[0].Delayed < 0 {
			quiet = max(quiet, time.Second+2*retryDelay) // the second and longest
		}
	}
	stored, err := r.inspectOutbox(ctx)
	return left + stored, quiet, err
}

// parkedMessage is one in the error queue.
type parkedMessage struct {
	n         int // 0 for a foreign message
	id, class string
}

// parked returns the messages of the error queue, and leaves them there.
func (r *run) parked(ctx context.Context) (found []parkedMessage, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	q := errorqueue.Queue{Conn: r.conn, Name: r.errorQueue()}
	err = q.Each(ctx, func(m *transport.Message, _ errorqueue.Entry) error {
		var job Job
		_ = json.Unmarshal(m.Body, &job) // zero for a foreign message
		found = append(found, parkedMessage{n: job.N, id: m.ID, class: m.Headers.Get(header.HoldfastFaultClass)})
		return nil
	})
	return found, err
}

// Receipt is the message that a handler sends by its outbox. Each attempt to handle a job sends a
// receipt with a new id.
type Receipt struct{ N int }

const receiptType = "Holdfast.Torture.Receipt"

// receipts is the queue of receipts. No endpoint receives from it.
func (a *assignment) receipts() string { return a.Name + ".receipts" }

// outbox and inbox are what the endpoint has in the database.
func (a *assignment) outbox() string { return a.Name + ".outbox" }

func (a *assignment) inbox() string { return a.Name + ".handled" }

// openOutbox connects to the database of the outbox in that mode.
func (r *run) openOutbox(ctx context.Context) (err error) {
	if r.Mode != Outbox {
		return nil
	}
	if r.opts.Outbox == nil || r.opts.Table == nil {
		return errors.New("no database of the outbox")
	}
	r.database, err = r.opts.Outbox.Open(ctx, transport.Env{Logger: r.opts.Log})
	if err != nil {
		return fmt.Errorf("connect to the outbox: %w", err)
	}
	if _, ok := r.database.(transport.Inspector); !ok {
		return errors.Join(errors.New("the database of the outbox cannot count its messages"), r.database.Close())
	}
	return nil
}

// installReceipts creates the queue of receipts.
func (r *run) installReceipts(ctx context.Context) error {
	if r.Mode != Outbox {
		return nil
	}
	installer, ok := r.conn.(transport.Installer)
	if !ok {
		return errors.New("the transport cannot create queues")
	}
	return installer.Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: r.receipts()}}})
}

// inspectOutbox returns the number of stored messages that were not sent yet.
func (r *run) inspectOutbox(ctx context.Context) (int64, error) {
	if r.database == nil {
		return 0, nil
	}
	stats, err := r.database.(transport.Inspector).Inspect(ctx, r.outbox()) //nolint:errcheck // openOutbox has checked it
	if err != nil {
		return 0, fmt.Errorf("inspect the outbox: %w", err)
	}
	return max(0, stats[0].Ready) + max(0, stats[0].Unsettled) + max(0, stats[0].Delayed), nil
}

// arrived returns how often each id arrived, by the number of the job.
func (r *run) arrived(ctx context.Context) (map[int]map[string]int, error) {
	if r.Mode != Outbox {
		return nil, nil //nolint:nilnil // nothing is sent
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	found := map[int]map[string]int{}
	q := errorqueue.Queue{Conn: r.conn, Name: r.receipts()}
	err := q.Each(ctx, func(m *transport.Message, _ errorqueue.Entry) error {
		var receipt Receipt
		_ = json.Unmarshal(m.Body, &receipt) // zero for a foreign message
		if found[receipt.N] == nil {
			found[receipt.N] = map[string]int{}
		}
		found[receipt.N][m.ID]++
		return nil
	})
	return found, err
}

// closeOutbox closes the connection to the database. Unless all is kept, it removes the tables
// first.
func (r *run) closeOutbox(ctx context.Context, keep bool) (err error) {
	if r.database == nil {
		return nil
	}
	if !keep {
		err = testbed.CleanUp(ctx, r.database, nil, "", r.outbox(), r.inbox())
	}
	return errors.Join(err, r.database.Close())
}

// Sent is the result of a run in the mode Outbox for the messages that the handlers sent: each
// business row has to have sent one message, under one id.
type Sent struct {
	Rows         int `json:"rows"`          // written by handlers
	Arrived      int `json:"arrived"`       // ids of messages
	ArrivedAgain int `json:"arrived_again"` // copies beyond the first of an id, which an inbox recognizes
	Ghosts       int `json:"ghosts"`        // ids without a row
	Missing      int `json:"missing"`       // rows without a message
}

// verifySent compares the business rows with the messages that arrived.
func (r *Report) verifySent(a *assignment, got records) {
	s := &Sent{}
	r.Outbox = s
	var ghosts, missing []string
	for _, n := range slices.Sorted(maps.Keys(got.done)) {
		s.Rows += got.done[n]
		if lacks := got.done[n] - len(got.arrived[n]); lacks > 0 && r.Unfinished == 0 {
			s.Missing += lacks
			missing = append(missing, a.id(n))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(got.arrived)) {
		s.Arrived += len(got.arrived[n])
		for _, times := range got.arrived[n] {
			s.ArrivedAgain += times - 1
		}
		if more := len(got.arrived[n]) - got.done[n]; more > 0 {
			s.Ghosts += more
			ghosts = append(ghosts, a.id(n))
		}
	}
	r.breach("ghosts: a message was sent, and the row of its handler is not there", ghosts)
	r.breach("missing: a row is there, and the message of its handler was not sent", missing)
}
