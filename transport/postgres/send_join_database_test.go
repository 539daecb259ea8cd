package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// The start of a server that has been restarted since is asked for again, once.
func TestARestartedServerIsTheSameDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out")
	s, err := (&Transport{URL: testURL(), Schema: w.schema}).store(t.Context(), transport.Env{})
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	for name, db := range usersDBs(t, testURL()) {
		now := *s.home.Load()
		s.home.Store(&database{now.name, now.started - time.Hour.Microseconds()})
		for n := range 2 {
			tx, commit := db.begin()
			db.seen.take()
			ok(t, s.InsertIn(t.Context(), tx, []tablequeue.Row{{Queue: "out", Headers: []byte("{}")}}))
			if got := db.seen.take(); n == 1 && len(got) != 1 {
				t.Errorf("%s: the statements are %q, want one", name, strings.Join(got, "\n"))
			}
			ok(t, commit())
		}
		if !s.home.Load().is(now) {
			t.Errorf("%s: the database is %v, want %v", name, s.home.Load(), now)
		}
	}
	if n := w.count("out"); n != 8 {
		t.Errorf("%d messages, want 8", n)
	}
}
