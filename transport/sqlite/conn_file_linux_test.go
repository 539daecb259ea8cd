package sqlite

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// isOpen says whether this process has a file open.
func isOpen(path string) bool {
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == path {
			return true
		}
	}
	return false
}

// TestOpenSaysThatAFileIsReadOnly takes the privileges of root, for whom nothing is
// read-only, from the thread that it runs on, which ends with it.
func TestOpenSaysThatAFileIsReadOnly(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast") //nolint:usetesting // that of the test is not open to others
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "orders.db")
	conn, err := (&Transport{Path: path}).Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{path: 0o444, dir: 0o555} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		const unprivileged = 65534
		if os.Geteuid() == 0 {
			if err := syscall.Setfsuid(unprivileged); err != nil {
				ended <- err
				return
			}
		}
		conn, err := (&Transport{Path: path}).Open(t.Context(), transport.Env{})
		if err == nil {
			conn.Close()
		}
		ended <- err
	}()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "needs write permission on the file") {
		t.Errorf("error %v", err)
	}
}
