package pump

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An outage is reported once, after two minutes, and the next outage again.
func TestAnOutageOfReceivesIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, errAway := &Reception{Queue: "sales"}, errors.New("away")
		for range 2 {
			began := time.Now()
			if outage := r.Note(errAway); outage != nil {
				t.Errorf("at once: %v", outage)
			}
			time.Sleep(criticalOutage)
			outage := r.Note(errAway)
			if !errors.Is(outage, errAway) || !strings.Contains(outage.Error(), `"sales" has been failing for 2m0s`) {
				t.Errorf("after two minutes: %v", outage)
			}
			time.Sleep(criticalOutage)
			if outage := r.Note(errAway); outage != nil {
				t.Errorf("again: %v", outage)
			}
			if since, err := r.Failing(); !since.Equal(began) || !errors.Is(err, errAway) {
				t.Errorf("failing since %v: %v", since, err)
			}
			if outage := r.Note(nil); outage != nil {
				t.Errorf("at the end: %v", outage)
			}
			if _, err := r.Failing(); err != nil {
				t.Errorf("after the end: %v", err)
			}
		}
	})
}
