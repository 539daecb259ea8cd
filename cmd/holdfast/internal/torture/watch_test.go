package torture

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// A kill whose time has come waits until each handler has processed a few messages since the kill
// before: however slow the machine, kills do not move innocent messages to the error queue.
func TestAKillWaitsForProgress(t *testing.T) {
	l := Load{Messages: 100, Workers: 1, Concurrency: 2, KillEvery: time.Millisecond, MaxKills: 2}
	w := &watch{run: &run{assignment: assignment{Load: l}}, kills: newPlan(l).kills(), began: time.Now()}
	w.workers = &workers{slots: []*slot{{}}}
	w.schedule()
	look := func(processed, kills int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), kindVariable+"=sound") // waits for an assignment
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.workers.slots[0].set(cmd)
		w.killIfDue(processed)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if got := len(w.killed); got != kills {
			t.Fatalf("%d kills after %d messages, want %d", got, processed, kills)
		}
	}
	look(10, 0) // the time has not come
	<-w.kill
	w.kill = nil
	look(10, 1)
	<-w.kill
	w.kill = nil
	look(17, 1)
	look(18, 2)
	if w.next != nil {
		t.Errorf("a third kill is planned, want at most %d", l.MaxKills)
	}
}
