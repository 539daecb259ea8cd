package schedule

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// inEachDatabase runs f in the database of an endpoint "billing" with a table of records.
func inEachDatabase(t *testing.T, f func(t *testing.T, db stateful.Database)) {
	t.Helper()
	for name, at := range map[string]func(t *testing.T) transport.Transport{
		"memory": func(*testing.T) transport.Transport { return &inmemory.Transport{} },
		"sqlite": func(t *testing.T) transport.Transport {
			return &sqlite.Transport{Path: filepath.Join(t.TempDir(), "jobs.db")}
		},
		"postgres": func(t *testing.T) transport.Transport { return &postgres.Transport{URL: brokertest.Postgres(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := at(t).Open(t.Context(), transport.Env{Endpoint: "billing"})
			check(t, err)
			defer conn.Close()
			check(t, conn.(transport.Installer).Install(t.Context(), transport.Plan{Records: []string{plansOf("billing")}}))
			db, err := stateful.DatabaseOn(conn)
			check(t, err)
			db.Endpoint = "billing"
			f(t, db)
		})
	}
}

// holderIn returns the living holder of a plan, read in a transaction.
func holderIn(t *testing.T, db stateful.Database, of *plan, after time.Duration) (holder *process) {
	t.Helper()
	check(t, db.Change(t.Context(), func(store transport.StateStore) (ops []transport.Operation, err error) {
		holder, err = livingHolder(t.Context(), jobStore{store, "billing", 0}, "reports", of, db.Now().Add(after))
		return nil, err
	}))
	return holder
}

func TestAProcessRenewsOneRecord(t *testing.T) {
	inEachDatabase(t, func(t *testing.T, db stateful.Database) {
		first, second := newProcess([]string{hashOf("reports", "a"), hashOf("mails", "b")}), newProcess(nil)
		for range 3 {
			check(t, first.renew(t.Context(), db))
		}
		check(t, second.renew(t.Context(), db))
		living, err := livingIn(t.Context(), db)
		if err != nil || len(living) != 2 {
			t.Fatalf("%+v, %v", living, err)
		}
		for i := range living {
			p := &living[i]
			if p.has("reports", "a") != (p.ID == first.ID) || p.has("reports", "b") || p.Began.IsZero() || p.Seen.Before(p.Began) {
				t.Errorf("%+v", p)
			}
		}
		named := &plan{Process: first.ID, Spec: "a"}
		if holder := holderIn(t, db, named, 14*time.Minute); holder == nil || holder.ID != first.ID {
			t.Errorf("the holder is %+v, want the first process", holder)
		}
		for what, holder := range map[string]*process{
			"silent":               holderIn(t, db, named, 16*time.Minute),
			"of an older version":  holderIn(t, db, &plan{Spec: "a"}, 0),
			"with another spec":    holderIn(t, db, &plan{Process: first.ID, Spec: "b"}, 0),
			"without the schedule": holderIn(t, db, &plan{Process: second.ID, Spec: "a"}, 0),
			"unknown":              holderIn(t, db, &plan{Process: "none", Spec: "a"}, 0),
		} {
			if holder != nil {
				t.Errorf("%s: %+v", what, holder)
			}
		}
		check(t, first.end(t.Context(), db))
		check(t, first.end(t.Context(), db))
		if living, err := livingIn(t.Context(), db); err != nil || len(living) != 1 || living[0].ID != second.ID {
			t.Errorf("%+v, %v", living, err)
		}
	})
}
