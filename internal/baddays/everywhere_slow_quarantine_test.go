package baddays_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
)

// slowToAnswer is a broker that answers a Receive of one queue only after some time, also when ctx
// has ended by then.
type slowToAnswer struct {
	transport.Transport
	queue string
	takes time.Duration
}

func (b *slowToAnswer) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &slowToAnswerConn{conn, conn.(transport.Installer), conn.(transport.Subscriber), conn.(transport.Inspector), b}, nil
}

type slowToAnswerConn struct {
	transport.Conn
	transport.Installer
	transport.Subscriber
	transport.Inspector
	broker *slowToAnswer
}

func (c *slowToAnswerConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	r, err := c.Conn.OpenReceiver(ctx, opts)
	if err == nil && opts.Queue == c.broker.queue {
		r = &slowToAnswerReceiver{r, c.broker.takes}
	}
	return r, err
}

type slowToAnswerReceiver struct {
	transport.Receiver
	takes time.Duration
}

func (r *slowToAnswerReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	answer := time.NewTimer(r.takes)
	defer answer.Stop()
	<-answer.C
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	ds, err := r.Receiver.Receive(look, limit)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return ds, err
}

// slowQuarantine has a suspect in quarantine and a broker that needs longer for an answer than the
// quarantine once waited.
func slowQuarantine(t *testing.T) outcome {
	normal := onEach(t, func(d *orderDay) time.Duration {
		suspects := size(1, 10)
		d.broker = &slowToAnswer{d.broker, d.queue + ".quarantine", 1500 * time.Millisecond}
		d.run(func(int) error { return nil }, func(cfg *endpoint.Config) {
			cfg.Recoverability.Quarantine.Idle = 5 * time.Second // the least
		})
		began := time.Now()
		d.send(0, suspects, d.queue+".quarantine")
		d.send(suspects, 20, d.queue)
		d.await("all orders to be handled", func() bool { _, _, orders := d.total(); return orders == suspects+20 })
		normal := time.Since(began)
		if attempts, _, _ := d.total(); attempts != suspects+20 || d.failed() != 0 {
			d.t.Errorf("%d attempts at %d orders, %d are in the error queue", attempts, suspects+20, d.failed())
		}
		return normal
	})
	return outcome{"is handled once, when the answer has come", "rest meanwhile, and are handled", normal}
}
