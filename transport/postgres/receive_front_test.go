package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

func at(seconds, seq int64) place {
	return place{pgtype.Timestamptz{Time: time.Unix(seconds, 0), Valid: true}, seq}
}

func TestTheFrontIsUsedOnlyWhereLooksAreSlow(t *testing.T) {
	t.Parallel()
	var f front
	now := time.Unix(1000, 0)
	begins := func(want place) {
		t.Helper()
		if from, all := f.begin(now); from != want || all != (want == everything) {
			t.Fatalf("a claim begins at %v (all: %t), want %v", from, all, want)
		}
	}
	begins(everything)
	f.reached(at(900, 1), true, fullLook, now)
	begins(everything) // it was fast

	f.reached(at(900, 2), true, 100*time.Millisecond, now)
	begins(everything) // it may have been the machine
	f.reached(at(900, 2), true, fullLook, now)
	f.reached(at(900, 2), true, 100*time.Millisecond, now)
	begins(everything) // not two in a row

	f.reached(at(900, 2), true, 100*time.Millisecond, now)
	begins(at(900, 2))
	f.reached(at(900, 9), false, time.Microsecond, now)
	begins(at(900, 9))
	f.reached(at(900, 5), false, time.Microsecond, now) // a claim that began before the other one ended
	begins(at(900, 9))

	now = now.Add(fullLookShare * 100 * time.Millisecond)
	begins(everything)
	begins(at(900, 9)) // meanwhile others go on at the front
	f.reached(at(800, 1), true, time.Hour, now)
	begins(at(800, 1)) // behind the front there was something
	now = now.Add(fullLookEvery)
	begins(everything)
	f.reached(at(950, 1), true, time.Millisecond, now)
	begins(everything) // the old snapshot is gone

	for range 3 {
		f.reached(at(950, 1), true, time.Second, now)
	}
	begins(at(950, 1))
	f.reset()
	begins(everything) // the clock was set back
}

// A claim that fails reports nothing: the next full look is not put off by more than usual.
func TestAFailedLookIsRepeated(t *testing.T) {
	t.Parallel()
	var f front
	now := time.Unix(1000, 0)
	for range 2 {
		f.reached(at(900, 1), true, time.Second, now)
	}
	now = now.Add(fullLookEvery)
	for range 3 {
		if _, all := f.begin(now); !all {
			t.Fatal("no look at everything")
		}
		now = now.Add(fullLookEvery)
	}
}

// An operator may park a message by visible_at = 'infinity', or want one first by '-infinity':
// neither is a moment in microseconds.
func TestRowsAtBothEndsOfTimeAreNoError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	w.exec(`INSERT INTO %sin (headers, visible_at) VALUES ('{"NServiceBus.MessageId":"first"}', '-infinity'), ('{"NServiceBus.MessageId":"parked"}', 'infinity')`)
	r := receiver(t, w.open(), "in")
	d := receive(t, r, 1)[0]
	if id := d.Message().ID; id != "first" {
		t.Errorf("received %q, want the first", id)
	}
	ok(t, d.Complete(t.Context()))
	nothing(t, r)
	w.exec(`UPDATE %sin SET visible_at = now()`)
	if id := receive(t, r, 1)[0].Message().ID; id != "parked" {
		t.Errorf("received %q, want the parked one", id)
	}
}
