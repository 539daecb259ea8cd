package asb

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

func TestADestinationThatRefusesIsAskedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d denial
		missing := fmt.Errorf("send: %w", transport.ErrNoQueue)
		d.note(missing)
		asked := 0
		for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(50 * time.Millisecond) {
			switch err := d.check(time.Now()); {
			case err == nil:
				asked++
				d.note(missing)
			case !errors.Is(err, transport.ErrNoQueue):
				t.Fatal(err)
			}
		}
		if asked < 8 || asked > 10 {
			t.Errorf("it was asked %d times in 10 s", asked)
		}
		time.Sleep(denialPause)
		if err := d.check(time.Now()); err != nil {
			t.Error(err)
		}
		if d.check(time.Now()) == nil {
			t.Error("a second request is made before the first is answered")
		}
		d.note(nil)
		if err := d.check(time.Now()); err != nil {
			t.Errorf("after one was accepted: %v", err)
		}
		d.note(fmt.Errorf("send: %w", errBusy))
		if err := d.check(time.Now()); err != nil {
			t.Errorf("a throttle is taken for a denial: %v", err)
		}
	})
}
