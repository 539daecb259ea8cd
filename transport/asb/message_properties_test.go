package asb_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

func TestCopiesHaveThePropertiesThatTheBrokerTakes(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBusSized(t, 100<<10, 100<<10)
	c := open(t, on(ns))
	install(t, c, "in")
	long := strings.Repeat("x", 129)
	for name, test := range map[string]struct {
		native, explicit, want map[string]string
		body                   int
	}{
		"all": {
			native: map[string]string{
				asb.PropertySessionID: "s", asb.PropertyPartitionKey: "s", asb.PropertySubject: "order", asb.PropertyTo: "t", asb.PropertyReplySessionID: "r",
			},
			want: map[string]string{
				asb.PropertySessionID: "s", asb.PropertyPartitionKey: "s", asb.PropertySubject: "order", asb.PropertyTo: "t", asb.PropertyReplySessionID: "r",
			},
		},
		"of a delivery only":     {native: map[string]string{asb.PropertyDeadLetterReason: "r", asb.PropertyMessageID: "m"}},
		"set by the operation":   {native: map[string]string{asb.PropertySubject: "a", asb.PropertyTo: "t"}, explicit: map[string]string{asb.PropertySubject: "b"}, want: map[string]string{asb.PropertySubject: "b", asb.PropertyTo: "t"}},
		"a session of its own":   {native: map[string]string{asb.PropertySessionID: "a", asb.PropertyPartitionKey: "a"}, explicit: map[string]string{asb.PropertySessionID: "b"}, want: map[string]string{asb.PropertySessionID: "b"}},
		"too long":               {native: map[string]string{asb.PropertySessionID: long, asb.PropertyPartitionKey: long, asb.PropertyReplySessionID: long}},
		"that differ":            {native: map[string]string{asb.PropertySessionID: "a", asb.PropertyPartitionKey: "b"}, want: map[string]string{asb.PropertySessionID: "a"}},
		"too large altogether":   {native: map[string]string{asb.PropertySubject: strings.Repeat("x", 20<<10)}, body: 90 << 10},
		"too large for anything": {native: map[string]string{asb.PropertySubject: strings.Repeat("x", 200<<10)}},
	} {
		t.Run(name, func(t *testing.T) {
			op := to("in", "m")
			op.Message.NativeID, op.Message.Native, op.Properties = "4711", test.native, test.explicit
			op.Message.Body = make([]byte, test.body)
			dispatch(t, c, op, to("in", "neighbour"))
			ms := queued(t, c, "in")
			if len(ms) != 2 {
				t.Fatalf("%q are in the queue", idsIn(ms))
			}
			if diff := cmp.Diff(test.want, ms[0].Native); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if _, err := c.(transport.Purger).Purge(within(t), "in"); err != nil {
				t.Fatal(err)
			}
		})
	}
}
