package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Verify proves that the totals of earlier runs add up against the input.
func Verify(ctx context.Context, opts Options) error {
	if _, err := os.Stat(opts.Path); err != nil { // opening it would create it
		return fmt.Errorf("%w: %w", errNothing, err)
	}
	return open(opts, func(d *demo) error {
		if err := d.ledger.match(ctx, d.input); err != nil {
			return err
		}
		return d.verify(ctx)
	})
}

// Reset removes the file of an earlier demo. It refuses one that holds anything else, or is no database.
func Reset(ctx context.Context, path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := onlyDemo(ctx, path)
	if err == nil {
		err = sqlitefile.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return nil
}

// onlyDemo fails unless the file at path was made by the demo and holds no other queues.
func onlyDemo(ctx context.Context, path string) error {
	l, err := openLedger(path)
	if err != nil {
		return err
	}
	if err := errors.Join(l.match(ctx, nil), l.close()); err != nil {
		return fmt.Errorf("%s is not the demo's: remove it yourself, or use another file by --transport: %w", path, err)
	}
	stats, err := inspect(ctx, &sqlite.Transport{Path: path})
	if err != nil {
		return err
	}
	own := append([]string{importing, errorQueue}, handling...)
	for _, q := range stats {
		if !slices.Contains(own, strings.TrimSuffix(q.Name, ".quarantine")) {
			return fmt.Errorf("%s holds the queue %q, which is not the demo's: remove it yourself", path, q.Name)
		}
	}
	return nil
}
