// Package testbed has what demo, bench and torture share: they run endpoints, leave queues at a
// broker, and a table in which handlers write.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// Remove deletes queues. It tries again until ctx ends: a busy broker may end the connection over a
// large queue.
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

// CleanUp deletes queues and the table of that name, also when ctx has ended. The table may be nil.
func CleanUp(ctx context.Context, conn transport.Conn, table Table, name string, queues ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err := Remove(ctx, conn, queues...)
	if table != nil {
		err = errors.Join(err, table.Drop(ctx, name))
	}
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}

// Launch runs an endpoint in the group until ctx ends. It returns when the endpoint is ready.
func Launch(ctx context.Context, group *errgroup.Group, cfg endpoint.Config) (*endpoint.Endpoint, error) {
	e, err := endpoint.New(cfg)
	if err != nil {
		return nil, err
	}
	group.Go(func() error { return e.Run(ctx) })
	return e, e.WaitReady(ctx)
}
