package drivertests

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// BenchmarkCommitToBroker measures the time from the commit of an idle program until the message is
// received from a broker in memory. The transaction is open after the send for a random time of up
// to that in the name. The relay is that of the sending endpoint, or of another instance, while the
// sender has only a connection to the database.
func BenchmarkCommitToBroker(b *testing.B) {
	for _, open := range []struct {
		name        string
		least, most time.Duration
	}{
		{"at once", 0, 0}, {"50ms", 0, 50 * time.Millisecond}, {"200ms", 0, 200 * time.Millisecond}, {"2s", 2 * time.Second, 2 * time.Second},
	} {
		for _, relay := range []string{"own relay", "other relay"} {
			b.Run(open.name+"/"+relay, func(b *testing.B) {
				s := newShop(b)
				send := func(tx any) error { return s.send(tx, "1") }
				if relay == "other relay" {
					send = storing(b, s.url)
				}
				begin := openPool(pgx.QueryExecModeCacheStatement)(b, s.url)
				var took []time.Duration
				for b.Loop() {
					pause(b, rand.N(20*time.Millisecond))
					tx := s.begin(begin, nil)
					must(b, tx.exec(`INSERT INTO rows VALUES (1)`))
					must(b, send(tx.tx))
					pause(b, open.least+rand.N(open.most-open.least+1))
					must(b, tx.commit())
					began := time.Now()
					s.receive(1)
					took = append(took, time.Since(began))
				}
				slices.Sort(took)
				b.ReportMetric(took[len(took)/2].Seconds()*1000, "p50-ms")
				b.ReportMetric(took[len(took)*99/100].Seconds()*1000, "p99-ms")
				b.ReportMetric(took[len(took)-1].Seconds()*1000, "max-ms")
			})
		}
	}
}

// storing stores messages in the outbox as an instance without a relay would.
func storing(b *testing.B, url string) func(tx any) error {
	conn, err := (&postgres.Transport{URL: url}).Open(b.Context(), transport.Env{Endpoint: "web", Instance: "other"})
	must(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	return func(tx any) error {
		now := time.Now()
		m := &transport.Message{ID: uuid.New(now), Body: []byte("1")}
		m.Headers = header.New(header.Field{Name: header.MessageID, Value: m.ID})
		body := envelope.Encode([]transport.Operation{{Message: m, Queue: "orders"}}, now, 1<<20)[0]
		stored := transport.Operation{Message: &transport.Message{ID: uuid.New(now), Body: body}, Queue: "web.outbox"}
		_, err := conn.(transport.TxDispatcher).DispatchIn(b.Context(), tx, []transport.Operation{stored})
		return err
	}
}

func pause(b *testing.B, d time.Duration) {
	ctx, cancel := context.WithTimeout(b.Context(), d)
	defer cancel()
	<-ctx.Done()
}
