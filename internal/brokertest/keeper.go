package brokertest

import (
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// keeper ends process groups when this process has ended, in whatever way, and removes a folder
// then.
type keeper struct {
	mu     sync.Mutex // guards the fields below
	in     io.Writer
	groups []int
}

// keeperScript is the program of a shell that outlives this process. The shell's input ends with
// this process. Each line of the input lists process groups, and the shell ends the groups of the
// last line.
const keeperScript = `last=
while read -r line; do last=$line; done
for group in $(echo "$last" | tr -d '[]'); do kill -s KILL -- "-$group" 2>/dev/null; done
sleep 1
rm -rf "$1"`

func newKeeper(dir string) (*keeper, error) {
	cmd := exec.Command("sh", "-c", keeperScript, "keeper", dir)
	ownGroup(cmd) // an interrupt from the keyboard must not end it
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &keeper{in: in}, cmd.Start()
}

// start starts a process in a group of its own. ended is closed when the process has ended. The
// keeper forgets the group when all its processes have ended: from then on the system may give the
// group's number to other processes.
func (k *keeper) start(cmd *exec.Cmd) (ended chan struct{}, err error) {
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	group := cmd.Process.Pid
	ended = make(chan struct{})
	go func() {
		_ = cmd.Wait() // a server ends by a signal
		close(ended)
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for groupLives(group) {
			<-look.C
		}
		// Without its shell the keeper ends no group.
		_ = k.change(func() { k.groups = slices.DeleteFunc(k.groups, func(g int) bool { return g == group }) })
	}()
	return ended, k.change(func() { k.groups = append(k.groups, group) })
}

// change tells the shell the groups as they are after do.
func (k *keeper) change(do func()) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
	_, err := fmt.Fprintln(k.in, k.groups)
	return err
}
