//go:build unix

package brokertest

import (
	"os/exec"
	"slices"
	"testing"
	"time"
)

// A group of a killed leader has processes, and must end with the test binary. The number of an
// ended group may be of other processes, and the keeper must not end them.
func TestTheKeeperForgetsGroupsThatHaveEnded(t *testing.T) {
	s, err := newServer("sleep")
	if err != nil {
		t.Fatal(err)
	}
	// The leader ends at once, and its group when the sleep does.
	cmd := exec.Command("sh", "-c", "sleep 600 & echo $!")
	if err := s.launch(cmd); err != nil {
		t.Fatal(err)
	}
	<-s.ended
	if kept := s.keeper.kept(); len(kept) != 1 || kept[0] != cmd.Process.Pid {
		t.Fatalf("the groups %v are kept, want that of the sleep", kept)
	}
	if err := exec.Command("kill", "-s", "KILL", s.log()).Run(); err != nil {
		t.Fatal(err)
	}
	over := time.After(time.Minute)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for len(s.keeper.kept()) > 0 {
		select {
		case <-look.C:
		case <-over:
			t.Fatalf("the groups %v are kept", s.keeper.kept())
		}
	}
}

func (k *keeper) kept() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.groups)
}
