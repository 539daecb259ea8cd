package acceptance_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// The proof at each point of the outbox: one worker process works on, and beside it another ends
// itself at a point. In the end each message has one row and has sent two messages, each under one
// id, and a message that comes again is not handled again.

// outboxPoints are the points in the order of an endpoint's work, with the greatest occurrence at
// which a process ends itself.
var outboxPoints = []struct {
	name  string
	point point
	most  int64
}{
	{"before the look-up", beforeLookUp, 20},
	{"after the look-up", afterLookUp, 20},
	{"in the handler after its first write", afterFirstWrite, 20},
	{"before the commit is sent", beforeCommit, 20},
	{"commit sent, answer not read", commitSent, 20}, // of PostgreSQL only: SQLite commits in the process itself
	{"after the commit, before the acknowledgement", afterCommit, 20},
	{"after the acknowledgement", afterAcknowledgement, 20},
	{"relay after the claim", afterClaim, 3},
	{"after the broker took the first of several operations", afterFirstOperation, 3},
	{"after dispatch, before the delete", afterDispatch, 3},
	{"in clean-up between two chunks", betweenChunks, pointOldKeys / pointChunk},
}

const (
	// pointRuns is how often a process ends itself at each point in the full form, and pointTime
	// for how long it does so at all points of one broker in the short form.
	pointRuns = 20
	pointTime = time.Minute

	// pointMessages are sent at once.
	pointMessages = 40

	// pointLate is how much later than the lease of a stored message its sends may arrive: a bound
	// for machines with other work, where less than a second is usual.
	pointLate = 10 * time.Second
)

func TestChaosAProcessEndsAtEachPointOfTheOutbox(t *testing.T) {
	t.Parallel()
	full := brokertest.Fault(t)
	databases := []string{"postgres", "sqlite"}
	for _, broker := range []string{"quorum", "sqs", "servicebus"} {
		for _, database := range databases {
			t.Run(broker+" "+database, func(t *testing.T) {
				t.Parallel()
				p := &pointProof{outboxProof: outboxProof{broker: broker, database: database}}
				p.t, p.all = t, t
				if !full {
					p.budget = pointTime / time.Duration(len(databases)*len(outboxPoints))
				}
				p.run()
			})
		}
	}
}

// pointProof is the proof on one broker and one database.
type pointProof struct {
	outboxProof
	budget    time.Duration // for each point; 0: pointRuns runs
	all       *testing.T    // the test of all points, with which the processes end
	conn, out transport.Conn
	other     *pointProcess // works on while others end themselves
}

func (p *pointProof) run() {
	seed := uint64(time.Now().UnixNano())
	p.t.Logf("seed %d", seed)
	p.random = rand.New(rand.NewPCG(seed, 1))
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Hour)
	defer cancel()
	p.prepare(ctx)
	p.connect(ctx)
	stop := p.takeNote(ctx)
	p.other = p.startProcess(nowhere, 0)
	for _, at := range outboxPoints {
		if at.point == commitSent && p.database != "postgres" {
			continue
		}
		ok := p.t.Run(at.name, func(t *testing.T) {
			p.t = t
			defer func() { p.t = p.all }()
			p.endAt(ctx, at.point, at.most)
		})
		if !ok {
			break
		}
	}
	if !p.t.Failed() {
		p.sendAgain(ctx)
	}
	p.other.stop(p.t)
	stop()
}

// connect opens connections to the broker and to the database, and makes the queues.
func (p *pointProof) connect(ctx context.Context) {
	var err error
	if p.conn, err = p.open().Open(ctx, transport.Env{}); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = p.conn.Close() })
	if p.out, err = p.rows.transport().Open(ctx, transport.Env{}); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = p.out.Close() })
	plan := transport.Plan{Queues: []transport.Queue{{Name: "work"}, {Name: "worked"}}}
	if err := p.conn.(transport.Installer).Install(ctx, plan); err != nil {
		p.t.Fatal(err)
	}
}

// endAt runs processes that end themselves at a point.
func (p *pointProof) endAt(ctx context.Context, at point, most int64) {
	began := time.Now()
	runs := 0
	var latest time.Duration
	for runs < pointRuns && (p.budget == 0 || runs == 0 || time.Since(began)*time.Duration(runs+1) < p.budget*time.Duration(runs)) {
		n := 1 + p.random.Int64N(most)
		latest = max(latest, p.endOnce(ctx, at, n))
		if runs++; p.t.Failed() {
			p.t.Fatalf("in run %d, which ended at occurrence %d", runs, n)
		}
	}
	p.t.Logf("%d of %d runs: what was committed arrived at most %v after the end of a process; the lease is %v",
		runs, pointRuns, latest.Round(time.Millisecond), killLease)
	if latest > killLease+pointLate {
		p.t.Errorf("what was committed arrived %v after the end of its process", latest)
	}
}

// endOnce runs one process until it ends itself at the n-th occurrence of a point. It returns how
// long afterwards the last message arrived that had been committed by then.
func (p *pointProof) endOnce(ctx context.Context, at point, n int64) (late time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if at == betweenChunks { // one process of all removes keys
		p.other.stop(p.t)
		p.addOldKeys(ctx)
		p.forgetNow(ctx)
	}
	ending := p.startProcess(at, n)
	p.work(ctx, ending)
	if at == betweenChunks {
		if left := p.oldKeys(ctx); left != pointOldKeys-int(n)*pointChunk {
			p.t.Errorf("%d old keys are left: the process has not ended between two chunks", left)
		}
		p.forgetNow(ctx)
		p.other = p.startProcess(nowhere, 0)
	}
	late = p.committedArrives(ctx)
	if at == betweenChunks {
		p.poll(ctx, "the old keys are removed", func() bool { return p.oldKeys(ctx) == 0 })
	}
	p.poll(ctx, "all has arrived", func() bool { return p.count() == 2*p.messages })
	p.empty(ctx)
	p.check(ctx)
	return late
}

// work sends messages until a process has ended itself.
func (p *pointProof) work(ctx context.Context, ending *pointProcess) {
	p.t.Helper()
	ended := false
	for !ended {
		p.send(ctx, pointMessages)
		p.poll(ctx, "all has arrived, or the process has ended", func() bool {
			ended = ending.ended()
			return ended || p.count() == 2*p.messages
		})
	}
	if code := ending.cmd.ProcessState.ExitCode(); code != endedItself {
		p.t.Fatalf("the process ended with code %d, and not at its point", code)
	}
}

// send puts further messages into the queue.
func (p *pointProof) send(ctx context.Context, messages int) {
	p.t.Helper()
	p.dispatch(ctx, p.messages, p.messages+messages)
	p.messages += messages
}

// dispatch puts the messages with the numbers from first to before end into the queue.
func (p *pointProof) dispatch(ctx context.Context, first, end int) {
	p.t.Helper()
	var ops []transport.Operation
	for n := first; n < end; n++ {
		m := &transport.Message{ID: fmt.Sprint("m-", n), Body: fmt.Appendf(nil, `{"N":%d}`, n)}
		m.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Kill.Work"})
		ops = append(ops, transport.Operation{Message: m, Queue: "work"})
	}
	for part := range slices.Chunk(ops, 500) {
		if _, err := p.conn.Dispatch(ctx, part); err != nil {
			p.t.Fatal(err)
		}
	}
}

// count returns the number of different messages that have arrived.
func (p *pointProof) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent)
}

// committedArrives waits until what is committed now has arrived, and returns how long that took.
func (p *pointProof) committedArrives(ctx context.Context) time.Duration {
	p.t.Helper()
	began := time.Now()
	rows, err := p.rows.rows(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	p.poll(ctx, "what was committed has arrived", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for len(rows) > 0 && p.sent[2*rows[0]] != nil && p.sent[2*rows[0]+1] != nil {
			rows = rows[1:]
		}
		return len(rows) == 0
	})
	return time.Since(began)
}

// empty waits until the queue of the workers and their outbox are empty.
func (p *pointProof) empty(ctx context.Context) {
	p.t.Helper()
	for queue, conn := range map[string]transport.Conn{"work": p.conn, "work.outbox": p.out} {
		p.poll(ctx, queue+" is empty", func() bool {
			stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
			return err == nil && stats[0].Ready+max(0, stats[0].Unsettled)+max(0, stats[0].Delayed) == 0
		})
	}
}

// check checks that each message has one row and one key, and has sent two messages under one id
// each, and that none has failed.
func (p *pointProof) check(ctx context.Context) {
	t := p.t
	t.Helper()
	rows, err := p.rows.rows(ctx)
	if err != nil {
		t.Fatal(err)
	}
	allOnce(t, "written", p.messages, rows)
	p.mu.Lock()
	var arrived []int
	for n, ids := range p.sent {
		arrived = append(arrived, slices.Repeat([]int{n}, len(ids))...)
	}
	p.mu.Unlock()
	allOnce(t, "sent", 2*p.messages, arrived)
	if len(rows) != p.messages || len(arrived) != 2*p.messages {
		t.Errorf("%d messages have %d rows, and have sent %d", p.messages, len(rows), len(arrived))
	}
	inbox, err := p.out.(transport.InboxInspector).InspectInbox(ctx, "work.handled")
	if err != nil || inbox.Rows != int64(p.messages) {
		t.Errorf("the inbox has %d keys, %v; want %d", inbox.Rows, err, p.messages)
	}
	for _, queue := range []string{"error", "work.quarantine"} {
		stats, err := p.conn.(transport.Inspector).Inspect(ctx, queue)
		if errors.Is(err, transport.ErrNoQueue) {
			continue
		}
		if err != nil || stats[0].Ready != 0 {
			t.Errorf("queue %q has %+v, %v", queue, stats, err)
		}
	}
}

// sendAgain sends all messages again, under their ids. None is handled again.
func (p *pointProof) sendAgain(ctx context.Context) {
	p.dispatch(ctx, 0, p.messages)
	p.empty(ctx)
	p.check(ctx)
}

// addOldKeys adds keys to the inbox that are old enough to be removed.
func (p *pointProof) addOldKeys(ctx context.Context) {
	p.t.Helper()
	add := fmt.Sprintf(`INSERT INTO "work.handled" (key, at, sum)
SELECT gen_random_uuid(), now() - interval '8 days', 0 FROM generate_series(1, %d)`, pointOldKeys)
	if p.database == "sqlite" {
		add = fmt.Sprintf(`WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < %d)
INSERT INTO holdfast_handled (inbox, key, at, sum)
SELECT inbox, randomblob(16), 0, 0 FROM holdfast_inboxes, n WHERE name = 'work.handled'`, pointOldKeys)
	}
	if err := p.rows.exec(ctx, add); err != nil {
		p.t.Fatal(err)
	}
}

// forgetNow lets the next process that looks remove old keys: the last removal is long ago.
func (p *pointProof) forgetNow(ctx context.Context) {
	p.t.Helper()
	due := `UPDATE holdfast_handled SET forgotten_at = now() - interval '1 hour' WHERE name = 'work.handled'`
	if p.database == "sqlite" {
		due = `UPDATE holdfast_inboxes SET forgotten_at = 0 WHERE name = 'work.handled'`
	}
	if err := p.rows.exec(ctx, due); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pointProof) oldKeys(ctx context.Context) int {
	p.t.Helper()
	n, err := oldKeys(ctx, p.rows)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// poll returns when done reports true.
func (p *pointProof) poll(ctx context.Context, what string, done func() bool) {
	p.t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case <-ctx.Done():
			p.t.Fatalf("it has not come to this after all that time: %s; %d messages, %d have arrived", what, p.messages, p.count())
		}
	}
}

// pointProcess is a worker process.
type pointProcess struct {
	worker
	died chan struct{} // closed at its end
}

// startProcess starts a worker process, which ends itself at the n-th occurrence of a point, and
// waits until it is ready.
func (p *pointProof) startProcess(at point, n int64) *pointProcess {
	p.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d %d", pointVariable, p.broker, p.database, at, n),
		placeVariable+"="+p.place, storeVariable+"="+p.databaseAt)
	cmd.Stderr = p.all.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.all.Cleanup(func() { _ = cmd.Process.Kill() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		p.t.Fatalf("a worker ended before it was ready: %q, %v", line, err)
	}
	w := &pointProcess{worker{cmd, stdin}, make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its result is in ProcessState
		close(w.died)
	}()
	return w
}

// ended reports whether the process has ended.
func (w *pointProcess) ended() bool {
	select {
	case <-w.died:
		return true
	default:
		return false
	}
}

// stop ends the process as an operator does.
func (w *pointProcess) stop(t *testing.T) {
	t.Helper()
	_ = w.stdin.Close()
	<-w.died
	if !w.cmd.ProcessState.Success() {
		t.Errorf("a worker ended with %v", w.cmd.ProcessState)
	}
}
