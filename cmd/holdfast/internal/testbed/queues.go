// Package testbed has what runs of bench and torture leave at a broker for their duration: queues, and a table in which
// handlers write.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// Remove deletes queues. It tries again until ctx ends: a busy broker may end the connection over a large queue.
func Remove(ctx context.Context, conn transport.Conn, queues ...string) error {
	remover, ok := conn.(transport.Remover)
	if !ok {
		return errors.New("the transport cannot delete queues")
	}
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for {
		err := remover.Remove(ctx, queues...)
		if err == nil {
			return nil
		}
		if pause.Wait(ctx) != nil {
			return fmt.Errorf("left behind: %q: %w", queues, err)
		}
	}
}
