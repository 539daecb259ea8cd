package torture

import (
	"context"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// faulty is a transport with a fault that torture must find.
type faulty struct {
	transport.Transport
	fault fault
}

// fault receives a delivery before the endpoint, and reports whether the endpoint receives it.
type fault func(ctx context.Context, conn transport.Conn, d transport.Delivery) (deliver bool, err error)

// victim reports whether a fault concerns the delivery: the first one of a certain message.
func victim(d transport.Delivery) bool {
	return strings.HasSuffix(d.Message().ID, "-7") && d.Attempt().N == 1 && d.Message().Headers.Get("Copied") == ""
}

// loses completes a message that was not handled.
func loses(ctx context.Context, _ transport.Conn, d transport.Delivery) (bool, error) {
	if !victim(d) {
		return true, nil
	}
	return false, d.Complete(ctx)
}

// doubles delivers a message and keeps a copy.
func doubles(ctx context.Context, conn transport.Conn, d transport.Delivery) (bool, error) {
	if !victim(d) {
		return true, nil
	}
	return true, copyTo(ctx, conn, d, strings.TrimSuffix(d.Message().ID, "-7"))
}

// parks has a message in the error queue that was processed.
func parks(ctx context.Context, conn transport.Conn, d transport.Delivery) (bool, error) {
	if !victim(d) {
		return true, nil
	}
	return true, copyTo(ctx, conn, d, strings.TrimSuffix(d.Message().ID, "-7")+".error")
}

// withholds never hands a message out.
func withholds(ctx context.Context, _ transport.Conn, d transport.Delivery) (bool, error) {
	if !strings.HasSuffix(d.Message().ID, "-7") {
		return true, nil
	}
	return false, d.Release(ctx)
}

func copyTo(ctx context.Context, conn transport.Conn, d transport.Delivery, queue string) error {
	m := *d.Message()
	m.Headers = m.Headers.Clone()
	m.Headers.Set("Copied", "yes")
	_, err := conn.Dispatch(ctx, []transport.Operation{{Message: &m, Queue: queue}})
	return err
}

func (f *faulty) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := f.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &faultyConn{conn, f.fault}, nil
}

type faultyConn struct {
	transport.Conn
	fault fault
}

func (c *faultyConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	r, err := c.Conn.OpenReceiver(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &faultyReceiver{r, r.(transport.Renewer), c}, nil
}

type faultyReceiver struct {
	transport.Receiver
	transport.Renewer
	conn *faultyConn
}

func (r *faultyReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	for {
		ds, err := r.Receiver.Receive(ctx, limit)
		if err != nil {
			return nil, err
		}
		var out []transport.Delivery
		for _, d := range ds {
			deliver, err := r.conn.fault(context.WithoutCancel(ctx), r.conn.Conn, d)
			if err != nil {
				return nil, err
			}
			if deliver {
				out = append(out, d)
			}
		}
		if len(out) > 0 {
			return out, nil
		}
	}
}
