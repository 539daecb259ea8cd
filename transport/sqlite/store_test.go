package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/storetest"
)

func TestTheStoreDoesWhatTheEngineExpects(t *testing.T) {
	dirs := map[testing.TB]string{}
	storetest.Run(t, storetest.Harness{Open: func(t testing.TB) tablequeue.Store {
		if dirs[t] == "" {
			dirs[t] = t.TempDir()
		}
		s, err := open(t.Context(), filepath.Join(dirs[t], "queues.db"), true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s.parts()
	}})
}

func TestPartsThatTheStoreLacks(t *testing.T) {
	s, err := open(t.Context(), filepath.Join(t.TempDir(), "queues.db"), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	storetest.Lacks(t, s.parts(),
		"Addresser", "Timed", "Sweeper", "Orphaner", "Locks", "FaultFinder", "Examiner", "Warner",
		"Foreign", "DelayedTables", "HandingOver")
}
