package sqs

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
)

// byFake is a transport whose connection makes its requests to a fake.
type byFake struct{ f *fake }

func (b byFake) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	cfg := &Transport{}
	return openConn(ctx, cfg.withDefaults(), clients{queues: b.f, close: func() {}}, env)
}

// A thousand messages take a hundred requests of each kind at best, and 1,200 requests if each
// completion is a request of its own. The test runs in virtual time: a request lasts 8 ms, and the
// load of the machine changes nothing.
func TestAThousandMessagesTakeFewRequests(t *testing.T) {
	type (
		order     struct{ Number int }
		orderDone order
	)
	const answers, most = 100, 370
	synctest.Test(t, func(t *testing.T) {
		f := &fake{latency: 8 * time.Millisecond}
		for i := range answers {
			var ms []types.Message
			for j := range 10 {
				ms = append(ms, cameAs(fmt.Sprintf("%d-%d", i, j), "Shop.Order"))
			}
			f.comes(ms)
		}
		e, err := endpoint.New(endpoint.Config{
			Name: "in", Transport: byFake{f}, Concurrency: 32,
			Messages: []endpoint.Message{endpoint.Command[order]("Shop.Order"), endpoint.Command[orderDone]("Shop.OrderDone").To("out")},
			Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m order) error {
				return s.Send(ctx, orderDone(m))
			})},
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		for began := time.Now(); len(f.deletions()) < 10*answers && time.Since(began) < time.Minute; {
			pass(100 * time.Millisecond)
		}
		n, of := f.total()
		t.Logf("%d requests: %v", n, of)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n > most {
			t.Errorf("%d requests, want at most %d", n, most)
		}
		if sent, deleted := len(f.sends()), len(f.deletions()); sent != 10*answers || deleted != 10*answers {
			t.Errorf("%d messages were sent and %d deleted, want %d", sent, deleted, 10*answers)
		}
	})
}
