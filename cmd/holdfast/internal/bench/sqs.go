package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// SQS is where a transport finds Amazon SQS.
func SQS(t *sqs.Transport) Broker { return amazon{t} }

type amazon struct{ transport *sqs.Transport }

// Remove removes also the queues in which messages wait for long.
func (a amazon) Remove(ctx context.Context, _ string, queues []string) (err error) {
	conn, err := a.transport.Open(ctx, transport.Env{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	remover, ok := conn.(transport.Remover)
	if !ok {
		return fmt.Errorf("%T deletes no queues", conn)
	}
	return remover.Remove(ctx, queues...)
}
