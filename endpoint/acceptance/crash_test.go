package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// The proof by crash: worker processes handle messages of which some end the process, while others
// fail now and then and workers are killed at random besides. In the end the messages that end
// the process are in the error queue, and all others have been handled.

const (
	crashVariable  = "HOLDFAST_CRASH_WORKER" // store of a worker process
	ledgerVariable = "HOLDFAST_CRASH_LEDGER" // the file that it notes down in what was quarantined
	crashWorkers   = 3

	// leastIdle is the least time between two looks at the quarantine while it is empty.
	leastIdle = 5 * time.Second
)

// crashes are the ways in which a message ends the process, by its number.
var crashes = map[int]func(){
	11:  func() { os.Exit(137) },
	57:  overflow,
	101: exhaust,
}

// overflow is a fatal error that nothing recovers from.
func overflow() {
	debug.SetMaxStack(1 << 20)
	var deeper func(n int) int
	deeper = func(n int) int { return deeper(n+1) + n }
	deeper(0)
}

// exhaust takes all memory under a limit.
func exhaust() {
	var pages uint64
	status, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(status), &pages)
	}
	most := pages*uint64(os.Getpagesize()) + 64<<20
	if err = errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: most, Max: most})); err != nil {
		fmt.Fprintln(os.Stderr, "no limit:", err)
		os.Exit(1)
	}
	for held := []byte{1}; ; {
		held = bytes.Repeat(held, 2)
	}
}

// crashWorker runs the endpoint until it ends by a message, is killed, or its standard input ends.
func crashWorker() error {
	store, err := openKillStore(os.Getenv(crashVariable), os.Getenv(placeVariable))
	if err != nil {
		return err
	}
	defer store.Close()
	ledger, err := os.OpenFile(os.Getenv(ledgerVariable), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer ledger.Close()
	cfg := killConfig(store, false)
	cfg.Concurrency = 16
	cfg.Recoverability.Delays.Delay = 100 * time.Millisecond
	cfg.Recoverability.Quarantine.Idle = leastIdle
	cfg.Logger = nil
	cfg.Notify = []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) {
		if n.Kind == recoverability.Quarantined {
			fmt.Fprintln(ledger, n.Failure.MessageID)
		}
	}}
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
		<-time.After(rand.N(40 * time.Millisecond))
		if crash := crashes[m.N]; crash != nil && os.Getenv("HOLDFAST_CRASH_NONE") == "" {
			crash()
		}
		if rand.N(100) == 0 {
			return errNo
		}
		return s.Send(ctx, worked(m))
	})}
	return runWorker(cfg)
}

func TestChaosExactlyPoisonMessagesAreParked(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	messages := 300
	if os.Getenv("HOLDFAST_SOAK") != "" {
		messages = 1000
	}
	for _, store := range []string{"sqlite", "postgres", "quorum", "servicebus", "sqs"} {
		for _, control := range []bool{true, false} {
			name := store
			if control {
				name += " control"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				p := &crashProof{killProof: killProof{t: t, store: store, place: crashPlace(t, store)}, control: control}
				p.ledger = filepath.Join(t.TempDir(), "ledger")
				p.run(messages)
			})
		}
	}
}

func crashPlace(t *testing.T, store string) string {
	switch store {
	case "postgres":
		return brokertest.Postgres(t)
	case "quorum":
		return brokertest.RabbitMQ(t)
	case "servicebus":
		ns := brokertest.OwnServiceBus(t)
		ns.ShortLock(killLease)
		return ns.Admin + " " + ns.ConnectionString
	case "sqs":
		return brokertest.SQS(t) + " " + brokertest.Name(t, "crash") + "-"
	}
	return filepath.Join(t.TempDir(), "crash.db")
}

type crashProof struct {
	killProof
	control bool // no message crashes the process, and nothing kills it
	ledger  string

	mu       sync.Mutex // guards the rest
	current  [crashWorkers]*exec.Cmd
	restarts int
	kills    int
	worked   []int // what was handled
	parked   []int // what is in the error queue
}

func (p *crashProof) run(messages int) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 5*time.Minute)
	defer cancel()
	p.prepare(ctx)
	suspects, others := halves(messages)
	p.send(ctx, suspects)
	if !p.control {
		p.deliver(ctx, len(suspects))
	}
	p.send(ctx, others)
	began := time.Now()
	working, stop := context.WithCancel(ctx)
	defer stop()
	var supervisors sync.WaitGroup
	for i := range p.current {
		supervisors.Go(func() { p.supervise(working, i) })
	}
	if !p.control {
		supervisors.Go(func() { p.killNowAndThen(working) })
	}
	p.waitUntilDone(ctx, messages)
	took := time.Since(began)
	stop()
	supervisors.Wait()
	p.verify(ctx, messages)
	p.t.Logf("%d messages in %.1f s, %d restarts, %d of them after a kill", messages, took.Seconds(), p.restarts, p.kills)
}

// halves parts the messages: three of ten are to be suspects from the beginning.
func halves(messages int) (suspects, others []int) {
	for n := range messages {
		if slices.Contains([]int{2, 5, 7}, n%10) {
			suspects = append(suspects, n)
		} else {
			others = append(others, n)
		}
	}
	return suspects, others
}

// deliver has all messages delivered so often, for a harmless reason, that they are suspects.
func (p *crashProof) deliver(ctx context.Context, messages int) {
	r, err := p.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "work"})
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Close()
	r.Window(messages)
	for range 6 {
		var all []transport.Delivery
		for len(all) < messages {
			ds, err := r.Receive(ctx, messages-len(all))
			if err != nil {
				p.t.Fatal(err)
			}
			all = append(all, ds...)
		}
		var settling sync.WaitGroup
		for _, d := range all {
			settling.Go(func() {
				if err := d.Retry(ctx); err != nil && !errors.Is(err, transport.ErrLeaseLost) { // which is a delivery too
					p.t.Error(err)
				}
			})
		}
		settling.Wait()
	}
}

// supervise keeps a worker running.
func (p *crashProof) supervise(ctx context.Context, i int) {
	for ctx.Err() == nil {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashVariable+"="+p.store, placeVariable+"="+p.place, ledgerVariable+"="+p.ledger)
		if p.control {
			cmd.Env = append(cmd.Env, "HOLDFAST_CRASH_NONE=1")
		}
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		stdin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			p.t.Error(err)
			return
		}
		unhook := context.AfterFunc(ctx, func() { _ = stdin.Close() })
		p.started(i, cmd)
		err = cmd.Wait()
		unhook()
		p.ended(ctx, err, output.String())
	}
}

func (p *crashProof) started(i int, cmd *exec.Cmd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current[i] = cmd
}

// ended checks that a worker ended as it should.
func (p *crashProof) ended(ctx context.Context, err error, output string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil && (!p.control || strings.Contains(output, "context canceled")) {
		return // stopped; or killed just now; or about to start, which fails by the stop
	}
	crashed := ctx.Err() == nil && !p.control && err != nil
	if crashed {
		p.restarts++
	}
	if !crashed && (err != nil || ctx.Err() == nil) || strings.Contains(output, "worker:") || strings.Contains(output, "no limit:") {
		p.t.Errorf("a worker ended with %v: %.2000s", err, output)
	}
}

// killNowAndThen kills a worker every half a second to a second.
func (p *crashProof) killNowAndThen(ctx context.Context) {
	done := -1 // messages at the last kill: on a slow machine kills alone would look like a crash loop
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second/2 + rand.N(time.Second/2)):
		}
		p.mu.Lock()
		cmd, now := p.current[rand.N(crashWorkers)], len(p.worked)+len(p.parked)
		if cmd != nil && now > done && ctx.Err() == nil && cmd.Process.Kill() == nil {
			p.kills++
			done = now
		}
		p.mu.Unlock()
	}
}

// waitUntilDone empties the two queues where every message's way ends, until all have come.
func (p *crashProof) waitUntilDone(ctx context.Context, messages int) {
	p.t.Helper()
	ctx, done := context.WithCancel(ctx)
	defer done()
	arrived := make(chan struct{}, 1)
	var taking sync.WaitGroup
	for queue, into := range map[string]*[]int{"worked": &p.worked, "error": &p.parked} {
		taking.Go(func() { p.takeAll(ctx, queue, into, arrived) })
	}
	defer taking.Wait()
	for all := map[int]bool{}; len(all) < messages; {
		select {
		case <-arrived:
		case <-ctx.Done():
			p.t.Errorf("%d of %d have come after all that time, ledger %s", len(all), messages, p.quarantined())
			return
		}
		p.mu.Lock()
		for _, n := range slices.Concat(p.worked, p.parked) {
			all[n] = true
		}
		p.mu.Unlock()
	}
	done()
}

// takeAll empties a queue, until ctx ends.
func (p *crashProof) takeAll(ctx context.Context, queue string, into *[]int, arrived chan<- struct{}) {
	r, err := p.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		p.t.Error(err)
		return
	}
	defer r.Close()
	r.Window(200)
	for ctx.Err() == nil {
		ds, err := r.Receive(ctx, 200)
		if err != nil && ctx.Err() == nil {
			p.t.Error(err)
			return
		}
		p.mu.Lock()
		for _, d := range ds {
			*into = append(*into, p.took(queue, d))
		}
		p.mu.Unlock()
		select {
		case arrived <- struct{}{}:
		default:
		}
	}
}

// took completes a message and returns its number.
func (p *crashProof) took(queue string, d transport.Delivery) (n int) {
	m := d.Message()
	if _, err := fmt.Sscanf(string(m.Body), `{"N":%d}`, &n); err != nil {
		p.t.Error(err)
	}
	if class := m.Headers.Get(header.HoldfastFaultClass); queue == "error" && class != recoverability.ClassCrashLoop {
		p.t.Errorf("%s has class %q: %s", m.ID, class, m.Headers.Get(header.ExceptionMessage))
	}
	if err := d.Complete(context.WithoutCancel(p.t.Context())); err != nil && !errors.Is(err, transport.ErrLeaseLost) {
		p.t.Error(err)
	}
	return n
}

func (p *crashProof) verify(ctx context.Context, messages int) {
	p.t.Helper()
	var want []int
	if !p.control {
		want = slices.Sorted(maps.Keys(crashes))
	}
	slices.Sort(p.parked)
	twice := []string{"quorum", "servicebus", "sqs"}
	if p.control {
		twice = twice[1:] // no process ends, and a lease of a second may end on a busy machine
	}
	if !slices.Contains(twice, p.store) {
		for _, queue := range []string{"work", "work.quarantine", "worked", "error"} {
			if left := p.received(ctx, queue); len(left) > 0 {
				p.t.Errorf("left in %s: %v", queue, left)
			}
		}
	} else {
		p.mayComeTwice()
	}
	if diff := cmp.Diff(want, p.parked); diff != "" {
		p.t.Errorf("in the error queue (-want +got):\n%s", diff)
	}
	allOnce(p.t, "handled or parked", messages, slices.Concat(p.worked, p.parked))
	quarantined := p.quarantined()
	if p.control && len(quarantined) > 0 {
		p.t.Errorf("quarantined although nothing ended a process: %q", quarantined)
	}
	p.t.Logf("quarantined: %d times, %d messages", len(quarantined), len(slices.Compact(slices.Sorted(slices.Values(quarantined)))))
}

// mayComeTwice accepts messages that came twice. Some brokers do not send and complete in one step:
// a kill in between repeats the message.
func (p *crashProof) mayComeTwice() {
	slices.Sort(p.worked)
	all := len(p.worked) + len(p.parked)
	p.worked, p.parked = slices.Compact(p.worked), slices.Compact(p.parked)
	p.t.Logf("%d came twice", all-len(p.worked)-len(p.parked))
}

func (p *crashProof) quarantined() []string {
	ledger, err := os.ReadFile(p.ledger)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Error(err)
	}
	return strings.Fields(string(ledger))
}
