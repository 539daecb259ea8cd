package postgres

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

func TestAMessageComesOutAsItWentIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	m := msg("ä-1")
	m.Headers.Set("Ünïcode \"quoted\"", "line\nbreak\x00and\t\\ 😀")
	m.Body = []byte{0, 1, 2, 255}
	send(t, c, to("in", m))
	d := receive(t, receiver(t, c, "in"), 1)[0]
	got := d.Message()
	if got.ID != m.ID || !slices.Equal(got.Body, m.Body) || got.NativeID == "" || got.Undecodable != nil {
		t.Errorf("got %+v, want %+v", got, m)
	}
	if diff := cmp.Diff(headers(m), headers(got)); diff != "" {
		t.Errorf("headers (-sent +received):\n%s", diff)
	}
	if a := d.Attempt(); a != (transport.Attempt{N: 1, Exact: true}) {
		t.Errorf("attempt %+v", a)
	}
	ok(t, d.Complete(t.Context()))
	if n := w.count("in"); n != 0 {
		t.Errorf("%d rows left after Complete", n)
	}
}

func headers(m *transport.Message) (all [][2]string) {
	for name, value := range m.Headers.All() {
		all = append(all, [2]string{name, value})
	}
	return all
}

func TestRetryCountsAndReleaseDoesNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	r := receiver(t, c, "in")
	send(t, c, to("in", msg("1")))
	d := receive(t, r, 1)[0]
	ok(t, d.Retry(t.Context()))
	d = receive(t, r, 1)[0]
	if n := d.Attempt().N; n != 2 {
		t.Errorf("after Retry: attempt %d, want 2", n)
	}
	ok(t, d.Release(t.Context()))
	d = receive(t, r, 1)[0]
	if n := d.Attempt().N; n != 2 {
		t.Errorf("after Release: attempt %d, want still 2", n)
	}
}
