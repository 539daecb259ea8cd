package tablequeue

import (
	"sync"
	"testing"
)

// The watch over the locks of a commit looks for names while the commit sets the Seq of rows. The
// race detector finds a look that copies rows.
func TestNamesAreReadBesideACommit(t *testing.T) {
	u := Unit{Rows: make([]Row, 100)}
	u.Rows[99].Name[0] = 1
	var commit sync.WaitGroup
	commit.Go(func() {
		for i := range u.Rows {
			u.Rows[i].Seq = 1
		}
	})
	if !u.HasNames() {
		t.Error("no name was found")
	}
	commit.Wait()
}
