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

// Reset removes the file of an earlier demo. It refuses one that holds anything else, or
// that is no database.
func Reset(ctx context.Context, path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := onlyDemo(ctx, path); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if err := sqlitefile.Remove(path); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return nil
}

// onlyDemo fails unless the file at path was made by the demo and nobody else keeps queues
// in it.
func onlyDemo(ctx context.Context, path string) error {
	l, err := openLedger(path)
	if err != nil {
		return err
	}
	_, err = l.lastRun(ctx)
	if err := errors.Join(err, l.close()); err != nil {
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
