package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// errOtherFile is for a path at which there is no file any more, or another file. SQLite goes on
// with the deleted file, which no other process can open.
var errOtherFile = errors.New("the file was deleted or replaced while it is open: put the file back, or restart all processes that use it")

// identityEach is the time between two looks at the file by statements that only read.
const identityEach = time.Second

// identity is the file that was opened. The methods are safe for concurrent use.
type identity struct {
	path string
	info os.FileInfo

	mu   sync.Mutex // guards the rest
	last time.Time  // of the last look
	err  error      // of the last look
}

// check returns errOtherFile if the path does not lead to the file that was opened. Any other error
// of the look is not reported: statements report it.
func (i *identity) check() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.look()
}

// checkSometimes is check at most once each second. In between it returns the error of the last
// look.
func (i *identity) checkSometimes() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.last) < identityEach {
		return i.err
	}
	return i.look()
}

// look looks at the path. Called with mu held.
func (i *identity) look() error {
	now, err := os.Stat(i.path)
	i.last, i.err = time.Now(), nil
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, i.info) {
		i.err = fmt.Errorf("%q: %w", i.path, errOtherFile)
	}
	return i.err
}
