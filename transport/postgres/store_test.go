package postgres

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/storetest"
)

func TestTheStoreDoesWhatTheEngineExpects(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(w *world) *store{
		"prepared": (*world).store, "pooled": (*world).pooled, "a caller's pool": (*world).onPool,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			worlds := testingWorlds{url: brokertest.Postgres(t), known: map[testing.TB]*world{}}
			storetest.Run(t, storetest.Harness{
				Open: func(t testing.TB) tablequeue.Store { return open(worlds.of(t)).parts() },
				Due: func(t testing.TB) {
					worlds.of(t).exec(`UPDATE %sholdfast_tables SET swept_at = swept_at - interval '1 hour'`)
				},
			})
		})
	}
}

// testingWorlds has a world for each test, all of them in one database.
type testingWorlds struct {
	url   string
	known map[testing.TB]*world
}

func (ws *testingWorlds) of(t testing.TB) *world {
	if ws.known[t] == nil {
		ws.known[t] = newWorldAt(t, ws.url)
	}
	return ws.known[t]
}

func TestPartsThatTheStoreLacks(t *testing.T) {
	t.Parallel()
	storetest.Lacks(t, newStore(settings{}).parts())
}
