package transporttest

import (
	"context"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

var addressMutants = []mutant{
	{"address-forms", "the address of an address is another one", func(f *faulty) {
		f.address = func(queue string) string { return "ns/" + queue }
	}},
	{"address-forms", "an address keeps its prefix in the short name", func(f *faulty) {
		f.address = func(queue string) string { return "ns/" + strings.TrimPrefix(queue, "ns/") }
	}},
	{"address-forms", "each short name is shorter than the one before", func(f *faulty) {
		f.shortName = func(address string) string { return address[min(1, len(address)):] }
	}},
	{"address-reaches", "messages to an address are for no queue", unknownTo("Dispatch")},
	{"address-reaches", "nothing is received from an address", unknownTo("OpenReceiver")},
}

// unknownTo makes addresses that every function knows but one.
func unknownTo(but string) func(f *faulty) {
	return func(f *faulty) {
		short := func(address string) string { return strings.TrimPrefix(address, "ns/") }
		f.address, f.shortName = func(queue string) string { return "ns/" + short(queue) }, short
		if but != "Dispatch" {
			f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
				ops = slices.Clone(ops)
				for i := range ops {
					ops[i].Queue = short(ops[i].Queue)
				}
				return c.sound.Dispatch(ctx, ops)
			}
		}
		if but != "OpenReceiver" {
			f.openReceiver = func(ctx context.Context, c *faultyConn, queue string) (transport.Receiver, error) {
				return c.sound.OpenReceiver(ctx, transport.ReceiverOptions{Queue: short(queue)})
			}
		}
	}
}
