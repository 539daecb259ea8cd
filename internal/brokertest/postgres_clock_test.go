package brokertest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The server's clock steps at once, in sessions that exist too, and goes on from there.
func TestTheClockOfAServerSteps(t *testing.T) {
	n, clock := ClockPostgres(t)
	db, err := pgx.Connect(t.Context(), n.URL)
	must(t, err)
	defer db.Close(t.Context())
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 1500 * time.Millisecond, 0} {
		clock.Set(ahead)
		for range 2 {
			began := time.Now()
			var now time.Time
			must(t, db.QueryRow(t.Context(), `SELECT clock_timestamp() FROM pg_sleep(0.05)`).Scan(&now))
			early, late := now.Sub(began)-ahead, time.Until(now)-ahead
			if early < 50*time.Millisecond-clockGrain || late > clockGrain {
				t.Errorf("the clock is %v ahead, want %v", now.Sub(began), ahead)
			}
		}
	}
}

// clockGrain is the precision of the server's clock.
const clockGrain = time.Millisecond
