package acceptance_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

var (
	instances = flag.Int("instances", 1_000_000, "instances of BenchmarkSagaStep")
	perRound  = flag.Int("messages", 10_000, "messages of a round of the benchmarks of sagas")
)

type (
	// deposit is a message for an account.
	deposit struct {
		Account string
		Cents   int
	}
	// open creates an account.
	open struct{ Account string }
	// account is the state of an account.
	account struct {
		Owner string
		Cents int
		Count int
	}
)

// BenchmarkSagaStep compares a step of a saga with a handler that selects its row FOR UPDATE and
// updates the row by hand, in the atomic mode on PostgreSQL, at a concurrency of 32. Both have as
// many rows as -instances says. Each round handles -messages messages for random rows by either;
// the medians of the rates and of their ratio are reported.
func BenchmarkSagaStep(b *testing.B) {
	w := newBank(b)
	w.fill(*instances + 1)
	byRound := map[string][]float64{}
	for b.Loop() {
		for _, name := range []string{"saga", "hand"} {
			w.put(name, *perRound, func(int) string { return accountOf(1 + rand.IntN(*instances)) })
			byRound[name] = append(byRound[name], w.rate(1, name, &w.others, *perRound))
		}
	}
	report(b, byRound, "hand")
}

// BenchmarkHotSaga compares messages for one instance of a saga, of three endpoints at a
// concurrency of 32 each, with a raw transaction that selects one row FOR UPDATE and updates the
// row, on one connection and on 32. No attempt may fail, and the sum in the state must be exact.
func BenchmarkHotSaga(b *testing.B) {
	w := newBank(b)
	w.fill(1)
	byRound := map[string][]float64{}
	for b.Loop() {
		for _, users := range []int{1, 32} {
			name := fmt.Sprint("raw", users)
			byRound[name] = append(byRound[name], w.raw(users, *perRound))
		}
		w.put("saga", *perRound, func(int) string { return accountOf(0) })
		byRound["saga"] = append(byRound["saga"], w.rate(3, "saga", &w.hot, *perRound))
	}
	if n, want := w.deposits(), b.N**perRound; n != want {
		b.Errorf("the states have %d deposits, want %d", n, want)
	}
	report(b, byRound, "raw1")
}

// BenchmarkSagaBesideHotOne compares the rate of messages for 1,000 instances alone with their rate
// beside messages for one hot instance, which are each tenth message.
func BenchmarkSagaBesideHotOne(b *testing.B) {
	w := newBank(b)
	w.fill(1001)
	byRound := map[string][]float64{}
	for b.Loop() {
		w.put("saga", *perRound, func(n int) string { return accountOf(1 + n%1000) })
		byRound["alone"] = append(byRound["alone"], w.rate(3, "saga", &w.others, *perRound))
		others := 0
		w.put("saga", *perRound, func(n int) string {
			if n%10 == 0 {
				return accountOf(0)
			}
			others++
			return accountOf(1 + n%1000)
		})
		byRound["beside"] = append(byRound["beside"], w.rate(3, "saga", &w.others, others))
	}
	report(b, byRound, "alone")
}

// report reports the medians of rates, and of their ratios to those of one of them.
func report(b *testing.B, byRound map[string][]float64, base string) {
	b.ReportMetric(0, "ns/op")
	for name, rates := range byRound {
		b.ReportMetric(middle(rates), name+"/s")
		if name == base {
			continue
		}
		ratios := make([]float64, len(rates))
		for i, rate := range rates {
			ratios[i] = rate / byRound[base][i]
		}
		b.ReportMetric(middle(ratios), name+":"+base)
	}
}

func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// bank is a database with accounts: in the records of the saga "accounts" of the endpoint "saga",
// and in a table of the handler of the endpoint "hand".
type bank struct {
	*testing.B

	url    string
	sql    *pgx.Conn
	sent   int64
	hot    atomic.Int64 // handled messages for the account 0
	others atomic.Int64 // handled messages for other accounts
}

func newBank(b *testing.B) *bank {
	w := &bank{B: b, url: brokertest.OwnPostgres(b).URL}
	sql, err := pgx.Connect(b.Context(), w.url)
	must(b, err)
	w.sql = sql
	b.Cleanup(func() { _ = sql.Close(context.Background()) })
	_, err = sql.Exec(b.Context(), `CREATE TABLE accounts (id text PRIMARY KEY, state json NOT NULL) WITH (fillfactor = 70)`)
	must(b, err)
	for _, name := range []string{"saga", "hand"} {
		e, err := endpoint.New(w.config(name))
		must(b, err)
		must(b, e.Install(b.Context()))
	}
	return w
}

func accountOf(n int) string { return fmt.Sprintf("account-%08d", n) }

// fill creates accounts, in both tables.
func (w *bank) fill(n int) {
	w.Helper()
	state, _ := json.Marshal(account{Owner: "Ada"})
	rows := func(row func(i int) []any) pgx.CopyFromSource {
		return pgx.CopyFromSlice(n, func(i int) ([]any, error) { return row(i), nil })
	}
	_, err := w.sql.CopyFrom(w.Context(), pgx.Identifier{"accounts"}, []string{"id", "state"},
		rows(func(i int) []any { return []any{accountOf(i), state} }))
	must(w, err)
	_, err = w.sql.CopyFrom(w.Context(), pgx.Identifier{"holdfast_state"},
		[]string{"id", "kind", "key", "version", "status", "state", "meta"},
		rows(func(i int) []any {
			id := saga.ID("saga", "accounts", accountOf(i))
			kind, meta := stateful.KindOf("saga", "accounts"), []byte(`{"version":1}`)
			return []any{uuid.Text(id), kind, accountOf(i), int64(1), int16(1), state, meta}
		}))
	must(w, err)
	_, err = w.sql.Exec(w.Context(), `VACUUM ANALYZE accounts, holdfast_state`)
	must(w, err)
}

func (w *bank) config(name string) endpoint.Config {
	cfg := endpoint.Config{
		Name: name, Concurrency: 32, Transactions: endpoint.SendsAtomicWithReceive,
		Transport: &postgres.Transport{URL: w.url, MaxTx: 24}, // a server accepts 100 connections by default
		Messages:  []endpoint.Message{endpoint.Command[deposit]("Bank.Deposit")}, Logger: slog.New(slog.DiscardHandler),
		Handlers: []endpoint.Handler{endpoint.Handle(w.byHand)},
		// A message that fails is not handled again, and the benchmark does not end.
		Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None},
	}
	if name == "saga" {
		on := saga.On(func(m deposit) string { return m.Account }, w.bySaga)
		start := saga.Start(func(m open) string { return m.Account },
			func(context.Context, *saga.Context[account], open) error { return nil })
		cfg.Messages = append(cfg.Messages, endpoint.Command[open]("Bank.Open"))
		cfg.Handlers = saga.New("accounts", start, on).Handlers()
	}
	return cfg
}

func (w *bank) bySaga(_ context.Context, c *saga.Context[account], m deposit) error {
	c.State.add(m)
	w.count(m)
	return nil
}

func (w *bank) byHand(ctx context.Context, s *endpoint.Session, m deposit) error {
	tx, err := postgres.Tx(ctx, s)
	if err != nil {
		return err
	}
	if err := addByHand(ctx, tx, m); err != nil {
		return err
	}
	w.count(m)
	return nil
}

func addByHand(ctx context.Context, tx pgx.Tx, m deposit) error {
	var text []byte
	if err := tx.QueryRow(ctx, `SELECT state FROM accounts WHERE id = $1 FOR UPDATE`, m.Account).Scan(&text); err != nil {
		return err
	}
	var state account
	if err := json.Unmarshal(text, &state); err != nil {
		return err
	}
	state.add(m)
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `UPDATE accounts SET state = $2 WHERE id = $1`, m.Account, text)
	return err
}

func (a *account) add(m deposit) {
	a.Cents += m.Cents
	a.Count++
}

func (w *bank) count(m deposit) {
	if m.Account == accountOf(0) {
		w.hot.Add(1)
		return
	}
	w.others.Add(1)
}

// put sends n messages to the queue of an endpoint, for the account that each number has.
func (w *bank) put(name string, n int, account func(n int) string) {
	w.Helper()
	c, err := (&postgres.Transport{URL: w.url}).Open(w.Context(), transport.Env{Endpoint: "fill"})
	must(w, err)
	defer func() { must(w, c.Close()) }()
	var ops []transport.Operation
	for i := range n {
		body, _ := json.Marshal(deposit{Account: account(i), Cents: 1})
		m := &transport.Message{ID: uuid.New(time.Now()), Body: body}
		m.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Bank.Deposit"},
			header.Field{Name: header.MessageID, Value: m.ID})
		ops = append(ops, transport.Operation{Queue: name, Message: m})
	}
	for some := range slices.Chunk(ops, 500) {
		_, err := c.Dispatch(w.Context(), some)
		must(w, err)
	}
	w.sent += int64(n)
	_, err = w.sql.Exec(w.Context(), `VACUUM ANALYZE "`+name+`"`)
	must(w, err)
}

// rate runs n endpoints until all messages are handled. It returns the messages a second of those
// that counter counts, until they are handled.
func (w *bank) rate(n int, name string, counter *atomic.Int64, messages int) float64 {
	w.Helper()
	before := counter.Load()
	ctx, stop := context.WithCancel(w.Context())
	defer stop()
	var running sync.WaitGroup
	for range n {
		e, err := endpoint.New(w.config(name))
		must(w, err)
		running.Go(func() {
			if err := e.Run(ctx); err != nil {
				w.Error(err)
			}
		})
	}
	began := time.Now()
	w.await(func() bool { return counter.Load()-before >= int64(messages) })
	took := time.Since(began)
	w.await(func() bool { return w.others.Load()+w.hot.Load() >= w.sent })
	stop()
	running.Wait()
	return float64(messages) / took.Seconds()
}

func (w *bank) await(done func() bool) {
	w.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(5 * time.Minute); !done(); {
		select {
		case <-tick.C:
		case <-late:
			w.Fatalf("%d messages for the account 0 and %d others are handled, of %d", w.hot.Load(), w.others.Load(), w.sent)
		}
	}
}

// raw returns the transactions a second of connections that add to the account 0.
func (w *bank) raw(connections, transactions int) float64 {
	w.Helper()
	var left atomic.Int64
	left.Store(int64(transactions))
	var working sync.WaitGroup
	var begin sync.WaitGroup
	begin.Add(connections)
	began := make(chan struct{})
	for range connections {
		working.Go(func() {
			conn, err := pgx.Connect(w.Context(), w.url)
			begin.Done()
			if err != nil {
				w.Error(err)
				return
			}
			defer func() { _ = conn.Close(context.Background()) }()
			<-began
			for left.Add(-1) >= 0 {
				if err := pgx.BeginFunc(w.Context(), conn, func(tx pgx.Tx) error {
					return addByHand(w.Context(), tx, deposit{Account: accountOf(0), Cents: 1})
				}); err != nil {
					w.Error(err)
					return
				}
			}
		})
	}
	begin.Wait()
	start := time.Now()
	close(began)
	working.Wait()
	return float64(transactions) / time.Since(start).Seconds()
}

// deposits returns the sum of the deposits in the records.
func (w *bank) deposits() (n int) {
	w.Helper()
	must(w, w.sql.QueryRow(w.Context(), `SELECT coalesce(sum((state->>'Count')::int), 0) FROM holdfast_state`).Scan(&n))
	return n
}
