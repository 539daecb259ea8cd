package torture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// journal is the file of the processes of one worker. A line that has been written outlives the
// process.
type journal struct{ *os.File }

const (
	started = "started"
	done    = "done"
)

func openJournal(folder string, worker int) (journal, error) {
	name := filepath.Join(folder, fmt.Sprintf("worker-%d", worker))
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return journal{file}, err
}

// note writes a line in one call: goroutines need no lock, and a kill leaves no half of it.
func (j journal) note(event string, n int) error {
	_, err := fmt.Fprintf(j, "%s %d\n", event, n)
	return err
}

// records are the starts and ends of handlers, by number of the message.
type records struct {
	started, done map[int]int
	arrived       map[int]map[string]int // how often each id of a sent message arrived; nil without an outbox
}

// errTable says that the rows of the handlers cannot be read, perhaps only now.
var errTable = errors.New("the rows of the handlers cannot be read")

func readJournals(folder string) (records, error) {
	r := records{started: map[int]int{}, done: map[int]int{}}
	byEvent := map[string]map[int]int{started: r.started, done: r.done}
	names, err := filepath.Glob(filepath.Join(folder, "worker-*"))
	if err != nil {
		return r, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return r, err
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasSuffix(line, "\n") {
				break // half written
			}
			var event string
			var n int
			_, err := fmt.Sscanln(line, &event, &n)
			counts := byEvent[event]
			if err == nil && counts == nil {
				err = errors.New("no such event")
			}
			if err != nil {
				return r, fmt.Errorf("%s: %q: %w", name, line, err)
			}
			counts[n]++
		}
	}
	return r, nil
}
