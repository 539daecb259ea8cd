package torture

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheLedgerAddsUpTheJournalsOfAllWorkers(t *testing.T) {
	folder := t.TempDir()
	for _, worker := range []int{0, 1, 0} { // the third goes on where the first was killed
		j, err := openJournal(folder, worker)
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= 3; n++ {
			if err := j.note(started, n); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.note(done, worker+1); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readJournals(folder)
	if err != nil {
		t.Fatal(err)
	}
	want := records{started: map[int]int{1: 3, 2: 3, 3: 3}, done: map[int]int{1: 2, 2: 1}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(records{})); diff != "" {
		t.Error(diff)
	}
}

func TestAJournalThatCannotBeReadIsNoProof(t *testing.T) {
	for _, text := range []string{"done\n", "done x\n", "drank 3\n", "done 1 2\n"} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "worker-0"), []byte("started 1\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readJournals(folder); err == nil || !strings.Contains(err.Error(), "worker-0") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestALineThatIsBeingWrittenDoesNotCountYet(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "worker-0"), []byte("started 1\nstarted 2"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readJournals(folder)
	if err != nil || !cmp.Equal(got.started, map[int]int{1: 1}) {
		t.Errorf("%v, %v", got, err)
	}
}
