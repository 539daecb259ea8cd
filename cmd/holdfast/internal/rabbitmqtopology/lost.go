package rabbitmqtopology

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// Lost is a delayed message whose queue was gone when it was due.
type Lost struct {
	ID    string `json:"id"`
	Type  string `json:"type,omitempty"`
	Queue string `json:"queue,omitempty"` // where it was to go
}

// EachLost goes through the messages that were lost, in the order of their queue, and leaves them there.
func EachLost(ctx context.Context, conn transport.Conn, progress func(seen int), visit func(Lost) error) error {
	inspector, ok := conn.(transport.Inspector)
	if !ok {
		return errors.New("the transport cannot look at its queues")
	}
	if _, err := inspector.Inspect(ctx, rabbitmq.LostQueue); err != nil {
		return fmt.Errorf("%w: holdfast rabbitmq delays create makes what delays need", err)
	}
	q := errorqueue.Queue{Conn: conn, Name: rabbitmq.LostQueue, Progress: progress}
	return q.Each(ctx, func(m *transport.Message, e errorqueue.Entry) error {
		return visit(Lost{ID: e.ID, Type: e.Type, Queue: rabbitmq.DelayedTo(m)})
	})
}
