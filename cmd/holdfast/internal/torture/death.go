package torture

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
)

// death is the way in which a poison message ends its process.
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

// die ends the process in a way that cannot be recovered from. It returns only when the system
// refused to kill.
func die(way death) error {
	switch way {
	case byExit:
		os.Exit(exitOfPoison)
	case byKill:
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return fmt.Errorf("poison could not kill its process: %w", err)
		}
	case byStack:
		debug.SetMaxStack(maxStack)
		_ = overflow(0)
	case byRuntime:
		new(sync.Mutex).Unlock() // a fatal error
	case byPanic:
		go func() { panic("poison") }() //nolint:forbidigo // on purpose
	}
	select {} // until the process ends
}

func overflow(n int) int { return 1 + overflow(n+1) } //nolint:staticcheck // endless on purpose
