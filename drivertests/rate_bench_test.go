package drivertests

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

const (
	users = 32                     // goroutines with a transaction each
	turn  = 250 * time.Millisecond // of one kind of transaction in a round
)

// BenchmarkSendInATransaction compares the rates of transactions of 32 goroutines: each inserts a
// business row and, in four of the five kinds, a message of 200 bytes. The kinds take turns of a
// quarter of a second, b.N times, and the medians of the rates and of the ratios to the "hand" of
// the same round are reported. "in" and "away" send by endpoint.In: with a relay in this process
// that sends to a broker in memory, and with a broker that is away, so that the rows stay. "hand"
// inserts the message into a table of the program's own, from which nothing sends, and "relayed"
// does so while a relay by hand takes the rows and drops them. "none" inserts no message.
func BenchmarkSendInATransaction(b *testing.B) {
	for name, open := range map[string]opener{
		"pgx": openPool(pgx.QueryExecModeCacheStatement), "sql": throughSQL(openPgx(pgx.QueryExecModeCacheStatement)),
		"pq": throughSQL(openPq("")),
	} {
		b.Run(name, func(b *testing.B) {
			r := newRates(b, open)
			r.round() // prepares statements and fills caches
			clear(r.all)
			for b.Loop() {
				r.round()
			}
			for _, kind := range []string{"in", "away", "hand", "relayed", "none"} {
				ratios := make([]float64, len(r.all[kind]))
				for round, rate := range r.all[kind] {
					ratios[round] = rate / r.all["hand"][round]
				}
				b.ReportMetric(median(r.all[kind]), kind+"-tx/s")
				b.ReportMetric(median(ratios), kind+"/hand")
			}
			ratios := make([]float64, len(r.all["in"]))
			for round, rate := range r.all["in"] {
				ratios[round] = rate / r.all["relayed"][round]
			}
			b.ReportMetric(median(ratios), "in/relayed")
		})
	}
}

// rates are the transactions per second of each kind and round.
type rates struct {
	testing.TB

	begin library
	web   *endpoint.Endpoint
	away  atomic.Bool
	db    *sql.DB
	admin func(text string)
	hand  func(tx any, m []byte) error
	all   map[string][]float64
}

func newRates(b *testing.B, open opener) *rates {
	url := brokertest.Postgres(b)
	r := &rates{TB: b, all: map[string][]float64{}, hand: insertByHand}
	broker := &inmemory.Transport{Fail: func(verb, _ string) error {
		if r.away.Load() && verb == "Dispatch" {
			return transport.ErrUnreachable
		}
		return nil
	}}
	broker.CreateQueues("orders")
	r.web = startWeb(b, broker, &postgres.Transport{URL: url})
	r.db = openPgx(pgx.QueryExecModeExec)(b, url)
	b.Cleanup(func() { _ = r.db.Close() })
	r.admin = func(text string) {
		_, err := r.db.ExecContext(b.Context(), text)
		must(b, err)
	}
	r.admin(`CREATE TABLE business (id uuid PRIMARY KEY, account int, total numeric)`)
	r.admin(`CREATE TABLE hand (id uuid PRIMARY KEY, queue text, headers text, body bytea)`)
	r.begin = open(b, url)
	return r
}

// round gives each kind of transaction its turn, on empty tables.
func (r *rates) round() {
	body := make([]byte, 200)
	send := func(tx any) error { return r.web.Send(r.Context(), order{body}, endpoint.In(tx)) }
	for kind, message := range map[string]func(tx any) error{
		"in": send, "away": send, "none": func(any) error { return nil },
		"hand": func(tx any) error { return r.hand(tx, body) }, "relayed": func(tx any) error { return r.hand(tx, body) },
	} {
		r.admin(`TRUNCATE business, hand, "web.outbox"`)
		r.away.Store(kind == "away")
		end := func() {}
		if kind == "relayed" {
			end = r.relayByHand()
		}
		r.all[kind] = append(r.all[kind], r.rate(message))
		end()
	}
	r.away.Store(false)
}

// relayByHand takes the rows of the program's own table, a hundred in a transaction, until end is
// called.
func (r *rates) relayByHand() (end func()) {
	ctx, cancel := context.WithCancel(r.Context())
	var relay sync.WaitGroup
	relay.Go(func() {
		idle := time.NewTicker(5 * time.Millisecond)
		defer idle.Stop()
		for ctx.Err() == nil {
			result, err := r.db.ExecContext(r.Context(), `DELETE FROM hand WHERE id IN (
	SELECT id FROM hand ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED) RETURNING headers, body`)
			if err != nil {
				r.Error(err)
				return
			}
			if n, _ := result.RowsAffected(); n == 0 {
				<-idle.C
			}
		}
	})
	return func() {
		cancel()
		relay.Wait()
	}
}

// rate returns the transactions per second of all users.
func (r *rates) rate(message func(tx any) error) float64 {
	ctx, cancel := context.WithTimeout(r.Context(), turn)
	defer cancel()
	var count atomic.Int64
	var working sync.WaitGroup
	began := time.Now()
	for range users {
		working.Go(func() {
			for ctx.Err() == nil {
				if err := r.transaction(message); err != nil {
					r.Error(err)
					return
				}
				count.Add(1)
			}
		})
	}
	working.Wait()
	return float64(count.Load()) / time.Since(began).Seconds()
}

func (r *rates) transaction(message func(tx any) error) error {
	tx, err := r.begin(r.Context(), nil)
	if err != nil {
		return err
	}
	if err = insert(tx.tx, `INSERT INTO business VALUES ($1, $2, $3)`, uuid.New(time.Now()), 1, "129.95"); err == nil {
		err = message(tx.tx)
	}
	if err != nil {
		_ = tx.rollback()
		return err
	}
	return tx.commit()
}

// handHeaders are as many bytes as an endpoint's headers.
var handHeaders = fmt.Sprintf(`{"NServiceBus.EnclosedMessageTypes":"Shop.Order","Padding":"%0600d"}`, 0)

func insertByHand(tx any, body []byte) error {
	return insert(tx, `INSERT INTO hand VALUES ($1, $2, $3, $4)`, uuid.New(time.Now()), "orders", handHeaders, body)
}

// insert executes a statement with parameters in a transaction of pgx or database/sql.
func insert(tx any, text string, args ...any) error {
	if tx, ok := tx.(pgx.Tx); ok {
		_, err := tx.Exec(context.Background(), text, args...)
		return err
	}
	_, err := tx.(*sql.Tx).ExecContext(context.Background(), text, args...)
	return err
}

func median(all []float64) float64 {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}
