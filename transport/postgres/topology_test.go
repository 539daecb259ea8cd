package postgres

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

func TestNamesAreQuotedWhateverIsInThem(t *testing.T) {
	t.Parallel()
	names := []string{
		`in"; DROP TABLE victim; --`, `a.b`, `Ünï cödé`, `""""`, `'`, `$1`, `%s`, `select`, "tab\tnew\nline",
		strings.Repeat("x", maxName), strings.Repeat("x", maxName-1) + "y", `back\slash`,
	}
	w := newWorld(t, append(names, "victim")...)
	c := w.open()
	for _, name := range names {
		send(t, c, to(name, msg("to "+name)))
	}
	for _, name := range names {
		d := receive(t, receiver(t, c, name), 1)[0]
		if d.Message().ID != "to "+name {
			t.Errorf("queue %q gave the message %q", name, d.Message().ID)
		}
		ok(t, completeWith(t, d, to(name, msg("again"))))
		ok(t, c.(transport.Subscriber).Subscribe(t.Context(), name, []string{name}))
	}
	if w.count("victim") != 0 {
		t.Error("victim has rows")
	}
}

func TestImpossibleNamesAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.open()
	for name, reason := range map[string]string{
		"":                        "empty",
		strings.Repeat("ü", 32):   "64 bytes",
		"nul\x00":                 "not text",
		"bad\xff":                 "not text",
		`"public".orders`:         "must be an address",
		dialect.SubscriptionTable: "taken",
		strings.Repeat("x", 200):  "200 bytes",
	} {
		_, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: name})
		install := c.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: name}}})
		for _, err := range []error{err, install} {
			if err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("queue %q: error %v, want one with %q", name, err, reason)
			}
		}
	}
	p := Transport{URL: testURL(), Schema: strings.Repeat("s", 64)}
	if _, err := p.Open(t.Context(), transport.Env{}); err == nil {
		t.Error("a schema name of 64 bytes was accepted")
	}
}

func TestAMissingQueueIsSaidToBeMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	_, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "missing"})
	isErr(t, err, transport.ErrNoQueue)
	_, err = c.(transport.Inspector).Inspect(t.Context(), "in", "missing")
	isErr(t, err, transport.ErrNoQueue)
	r := receiver(t, c, "in")
	w.exec(`DROP TABLE %sin`)
	_, err = r.Receive(t.Context(), 1)
	isErr(t, err, transport.ErrNoQueue)
}

func TestPublishingBeforeTheInstallerRanSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`DROP TABLE %sholdfast_subscriptions`)
	_, err := w.open().Dispatch(t.Context(), []transport.Operation{{Message: msg("1"), Types: []string{"T"}}})
	if err == nil || !strings.Contains(err.Error(), "run the installer") {
		t.Errorf("error %v", err)
	}
}

func TestSeveralProcessesInstallAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`DROP TABLE %sholdfast_subscriptions`)
	plan := transport.Plan{Queues: []transport.Queue{{Name: "a"}, {Name: "b"}, {Name: "error", Shared: true}}}
	var wg sync.WaitGroup
	for range 4 {
		c := w.open()
		wg.Go(func() {
			if err := c.(transport.Installer).Install(t.Context(), plan); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	send(t, w.open(), to("error", msg("1")))
	ok(t, w.open().(transport.Installer).Install(t.Context(), plan))
	if n := w.count("error"); n != 1 {
		t.Errorf("%d messages after installing again, want 1", n)
	}
}

func TestInspectCountsWhatIsReadyHeldAndDelayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "empty")
	c := w.open()
	var ops []transport.Operation
	for i := range 6 {
		ops = append(ops, to("in", msg("m")))
		if i >= 4 {
			ops[i].After = time.Hour
		}
	}
	send(t, c, ops...)
	receive(t, receiver(t, c, "in"), 1)
	w.exec(`UPDATE %sin SET visible_at = now() - interval '90 seconds' WHERE seq = (SELECT max(seq) FROM %sin WHERE visible_at <= now())`)
	stats, err := c.(transport.Inspector).Inspect(t.Context())
	ok(t, err)
	slices.SortFunc(stats, func(a, b transport.QueueStats) int { return cmp.Compare(a.Name, b.Name) })
	if len(stats) != 2 || stats[0] != (transport.QueueStats{Name: "empty"}) {
		t.Fatalf("stats %+v, want those of empty and in", stats)
	}
	in := stats[1]
	if in.Oldest < 90*time.Second || in.Oldest > 120*time.Second {
		t.Errorf("oldest %v, want about 90 s", in.Oldest)
	}
	in.Oldest = 0
	if want := (transport.QueueStats{Name: "in", Ready: 3, Unsettled: 1, Delayed: 2}); in != want {
		t.Errorf("stats %+v, want %+v", in, want)
	}
}
