package transporttest

import (
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

func receiveBytes(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	large := func(id string, size int) transport.Operation {
		op := to(q, id)
		op.Message.Body = make([]byte, size)
		return op
	}
	const body = 10 << 10
	for _, op := range []transport.Operation{large("large", 4*body), large("a", body), large("b", body), large("c", body), large("d", 10)} {
		t.dispatch(c, op)
	}
	r := as[transport.ByteReceiver](t, t.receiver(c, q))
	for _, want := range [][]string{{"large"}, {"a", "b"}, {"c", "d"}} {
		ds, err := r.ReceiveBytes(t.ctx(), 10, 2*body+body/2)
		if err != nil {
			t.Fatal(err)
		}
		if got := idsOf(ds); !slices.Equal(got, want) {
			t.Errorf("ReceiveBytes of 25 KiB returned %q, want %q", got, want)
		}
		t.complete(ds...)
	}
	t.empty(c, q)
}
