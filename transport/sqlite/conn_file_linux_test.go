package sqlite

import (
	"errors"
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

// What is sent after the file was deleted or replaced fails: SQLite would write to a file that no
// other process can open.
func TestAFileThatIsDeletedOrReplacedIsSaid(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"deleted":  os.Remove,
		"moved":    func(path string) error { return os.Rename(path, path+".old") },
		"replaced": func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := temp(t)
			conn, err := (&Transport{Path: path}).Open(t.Context(), transport.Env{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := conn.Close(); err != nil && name == "moved" {
					t.Error(err)
				}
			}()
			if err := conn.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: queue}}}); err != nil {
				t.Fatal(err)
			}
			r := receiver(t, conn, queue)
			send(t, conn, to(queue, "m"))
			d := receive(t, r)
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			_, err = conn.Dispatch(t.Context(), []transport.Operation{to(queue, "lost")})
			isOther := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, transport.ErrUnreachable) || !strings.Contains(err.Error(), "deleted or replaced") || !strings.Contains(err.Error(), path) {
					t.Errorf("%s: %v", what, err)
				}
			}
			isOther("Dispatch", err)
			isOther("Complete", d.Complete(t.Context()))
			for ctx := t.Context(); err == nil || !strings.Contains(err.Error(), "deleted or replaced"); { // within a second
				if _, err = r.Receive(ctx, 1); err != nil {
					isOther("Receive", err)
				}
			}
			if name != "moved" {
				return
			}
			if err := os.Rename(path+".old", path); err != nil {
				t.Fatal(err)
			}
			send(t, conn, to(queue, "n"))
			if err := d.Complete(t.Context()); err != nil {
				t.Error("with the file back:", err)
			}
		})
	}
}
