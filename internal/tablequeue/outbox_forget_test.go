package tablequeue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// remembering opens a Conn that removes ids after d, and uses the inbox.
func remembering(t testing.TB, f *fake, d time.Duration) (c *Conn, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	c = Open(f.parts(), Config{Env: transport.Env{Endpoint: "e", Remember: d, Logger: slog.New(slog.NewTextHandler(log, nil))}})
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.FindHandled(t.Context(), "a.handled", []transport.HandledKey{keyOf(0)}); err != nil {
		t.Fatal(err)
	}
	return c, log
}

// fill records n keys.
func (f *fake) fill(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range n {
		id := [16]byte{15: 1}
		binary.BigEndian.PutUint64(id[:], uint64(i))
		f.inboxes["a.handled"].keys[id] = fakeKey{at: time.Now()}
	}
}

func (f *fake) recorded() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.inboxes["a.handled"].keys)
}

func TestOldIDsAreRemovedInPartsByOneProcessAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		f.fill(3*forgetSome + 10)
		removing, most := 0, 0
		f.onForget = func() error {
			f.mu.Lock()
			removing++
			most = max(most, removing)
			f.mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			f.mu.Lock()
			removing--
			f.mu.Unlock()
			return nil
		}
		for range 2 {
			remembering(t, f, 30*time.Minute)
		}
		time.Sleep(29 * time.Minute)
		if n := f.recorded(); n != 3*forgetSome+10 {
			t.Fatalf("%d ids are left before any is old enough", n)
		}
		time.Sleep(2*time.Minute + 500*time.Millisecond) // a part and half of the pause after it
		if n := f.recorded(); n != 0 && n%forgetSome != 10 {
			t.Errorf("%d ids are left, want parts of %d removed", n, forgetSome)
		}
		time.Sleep(time.Minute)
		if n := f.recorded(); n != 0 || most != 1 {
			t.Errorf("%d ids are left, after up to %d processes removed some at once", n, most)
		}
		if n := f.callsOf("forget 5000"); n != 3 {
			t.Errorf("%d whole parts were removed, want 3", n)
		}
		f.fill(7)
		time.Sleep(32 * time.Minute)
		if n := f.recorded(); n != 0 {
			t.Errorf("%d later ids are left", n)
		}
	})
}

func TestRemovingPausesTenTimesAsLongAsAPartTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		f.fill(3 * forgetSome)
		var began []time.Time
		f.onForget = func() error {
			began = append(began, time.Now())
			time.Sleep(100 * time.Millisecond)
			return nil
		}
		remembering(t, f, 30*time.Second)
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if len(began) != 4 {
			t.Fatalf("%d requests, want one for each of 3 parts and one that finds nothing", len(began))
		}
		for i := range 3 {
			if pause := began[i+1].Sub(began[i]); pause != 1100*time.Millisecond {
				t.Errorf("the next part was removed after %v, want 1.1 s", pause)
			}
		}
	})
}

func TestIDsAreKeptForEverWithoutATimeToRememberThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range []time.Duration{0, -1} {
			f := newInbox(t)
			f.fill(1)
			remembering(t, f, d)
			time.Sleep(1000 * time.Hour)
			if f.recorded() != 1 || f.callsOf("forget") != 0 {
				t.Errorf("Remember %v: ids were removed", d)
			}
		}
	})
}

func TestAFailureToRemoveIDsIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		f.onForget = func() error { return errors.New("permission denied for table a.handled") }
		_, log := remembering(t, f, time.Minute)
		time.Sleep(5*time.Minute + 30*time.Second)
		synctest.Wait()
		if n := strings.Count(log.String(), "level=WARN"); n != 5 {
			t.Errorf("%d warnings in five minutes, want 5:\n%s", n, log)
		}
		for _, want := range []string{"ids of handled messages", "inbox=a.handled", "permission denied for table a.handled"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log has no %q:\n%s", want, log)
			}
		}
	})
}

func TestAnInboxThatGrowsTooOldOrTooLargeIsAWarning(t *testing.T) {
	const remember = 7 * 24 * time.Hour
	for _, tt := range []struct {
		stats    transport.InboxStats
		remember time.Duration
		want     string // in the only warning
	}{
		{transport.InboxStats{Bytes: largeInbox - 1, Oldest: remember + forgetLate}, remember, ""},
		{transport.InboxStats{Bytes: largeInbox}, remember, `inbox "a.handled" has 20 GiB`},
		{transport.InboxStats{Oldest: remember + forgetLate + time.Minute}, remember, `ids in inbox "a.handled" are 169h1m0s old`},
		{transport.InboxStats{Oldest: 100 * remember}, -1, ""},
	} {
		tt.stats.Name = "a.handled"
		got := strings.Join(inboxWarning(tt.stats, tt.remember), "\n")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%+v: warning %q, want %q in it", tt.stats, got, tt.want)
		}
	}
}

func TestWarningsOfAnInboxAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		f.fill(1)
		f.onForget = func() error { return errRefused }
		c, _ := remembering(t, f, time.Minute)
		receiverOf(t, c, "a") // which has the Conn look for failures
		time.Sleep(3 * time.Hour)
		if all := c.Warnings(); len(all) != 1 || !strings.Contains(all[0], `inbox "a.handled"`) {
			t.Errorf("warnings %q, want one of the inbox", all)
		}
	})
}

// The first removal comes soon after the first use, unless another process has removed keys lately.
func TestOldKeysAreRemovedSoonAfterTheFirstUse(t *testing.T) {
	for name, test := range map[string]struct {
		marked time.Duration // before the first use
		after  time.Duration // when the keys are removed
	}{
		"due":            {time.Hour, forgetFirst},
		"removed lately": {30 * time.Second, forgetFirst + forgetEvery},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newInbox(t)
				f.fill(3*forgetSome + 1)
				time.Sleep(time.Hour) // the inbox is not used yet
				f.inboxes["a.handled"].forgotten = time.Now().Add(-test.marked)
				remembering(t, f, time.Minute)
				time.Sleep(test.after - time.Millisecond)
				if n := f.recorded(); n != 3*forgetSome+1 {
					t.Errorf("%d keys are left before the first removal", n)
				}
				time.Sleep(time.Second)
				if n := f.recorded(); n != 0 {
					t.Errorf("%d keys are left after %v", n, test.after)
				}
			})
		})
	}
}

func TestCloseEndsTheRemovalOfIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		f.fill(10 * forgetSome)
		f.onForget = func() error { time.Sleep(100 * time.Millisecond); return nil }
		c, _ := remembering(t, f, 30*time.Second)
		for f.recorded() == 10*forgetSome {
			time.Sleep(time.Second / 2)
		}
		left, began := f.recorded(), time.Now()
		isErr(t, c.Close(), nil)
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("Close took %v", took)
		}
		time.Sleep(time.Hour)
		if n := f.recorded(); n == 0 || left-n > forgetSome {
			t.Errorf("%d ids were left before Close, and %d after it", left, n)
		}
	})
}
