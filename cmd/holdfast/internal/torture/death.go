package torture

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync"
)

// death is a way in which a poison message ends its process.
type death string

const (
	byExit    death = "os.Exit"
	byKill    death = "SIGKILL"
	byStack   death = "stack overflow"
	byRuntime death = "fatal error of the runtime"
	byPanic   death = "panic in a goroutine"
)

var deaths = []death{byExit, byKill, byStack, byRuntime, byPanic}

const (
	exitOfPoison = 86
	// maxStack keeps a stack overflow from taking a gigabyte first.
	maxStack = 32 << 20
)

// die ends the process: nothing can be recovered from these. It returns only where the system
// refused to kill.
func die(way death) error {
	switch way {
	case byExit:
		os.Exit(exitOfPoison)
	case byKill:
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			return fmt.Errorf("poison could not kill its process: %w", err)
		}
	case byStack:
		debug.SetMaxStack(maxStack)
		_ = overflow(0)
	case byRuntime:
		new(sync.Mutex).Unlock() // which the runtime does not forgive
	case byPanic:
		go func() { panic("poison") }() //nolint:forbidigo // that is what poison does
	}
	select {} // until it has come to that
}

func overflow(n int) int { return 1 + overflow(n+1) } //nolint:staticcheck // without an end on purpose
