package torture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// journal is what the processes of one worker write down, one after the other. A line that has
// been written outlives the process.
type journal struct{ file *os.File }

const (
	started = "started"
	done    = "done"
)

func openJournal(folder string, worker int) (*journal, error) {
	file, err := os.OpenFile(filepath.Join(folder, fmt.Sprintf("worker-%d", worker)), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{file}, nil
}

// note writes a line in one call, so that goroutines need no lock and a kill leaves no half of it.
func (j *journal) note(event string, n int) error {
	_, err := fmt.Fprintf(j.file, "%s %d\n", event, n)
	return err
}

// records are how often handlers were started with a message, and how often they were done with it.
type records struct{ started, done map[int]int }

// ledger is all that the workers wrote: their journals and, in atomic mode, the rows of their
// handlers, in whose place the journals then do not count.
type ledger struct {
	folder string
	rows   Rows // nil outside atomic mode
	table  string
}

func (l *ledger) read(ctx context.Context) (records, error) {
	r := records{started: map[int]int{}, done: map[int]int{}}
	names, err := filepath.Glob(filepath.Join(l.folder, "worker-*"))
	if err != nil {
		return r, err
	}
	for _, name := range names {
		if err := r.readJournal(name); err != nil {
			return r, err
		}
	}
	if l.rows == nil {
		return r, nil
	}
	ns, err := l.rows.read(ctx, l.table)
	for _, n := range ns {
		r.done[n]++
	}
	return r, err
}

func (r records) readJournal(name string) (err error) {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var event string
		var n int
		if _, err := fmt.Sscan(lines.Text(), &event, &n); err != nil {
			return fmt.Errorf("%s: %q: %w", name, lines.Text(), err)
		}
		switch event {
		case started:
			r.started[n]++
		case done:
			r.done[n]++
		default:
			return fmt.Errorf("%s: %q: no such event", name, event)
		}
	}
	return lines.Err()
}
