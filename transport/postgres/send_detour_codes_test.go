package postgres

import (
	"sync"
	"testing"
)

// Errors of one destination's trigger, with codes that a server in trouble has too, fail no message
// for another destination.
func TestErrorsOfOneTableFailNoOtherMessage(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"XX000", "58030", "08001", "53400", "0A000", "40001", "57P01"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "in", "out", "odd")
			w.impede("odd", `RAISE EXCEPTION 'not now' USING ERRCODE = '`+code+`';`)
			c := w.open()
			const n = 40 // with two for the odd table: the search for more in one batch has a bound
			for range n {
				send(t, c, to("in", msg("x")))
			}
			ds := receive(t, receiver(t, c, "in"), n)
			errs := make([]error, n)
			var all sync.WaitGroup
			for i, d := range ds {
				all.Go(func() { errs[i] = completeWith(t, d, to([]string{"odd", "out"}[min(i%20, 1)], msg("y"))) })
			}
			all.Wait()
			for i, err := range errs {
				if (err != nil) != (i%20 == 0) {
					t.Errorf("message %d: %v", i, err)
				}
			}
		})
	}
}
