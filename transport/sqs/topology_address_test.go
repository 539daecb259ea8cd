package sqs

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

func TestEveryFormOfAnAddressIsOneQueue(t *testing.T) {
	for _, test := range []struct{ prefix, form, address, name string }{
		{"", "sales", "sales", "sales"},
		{"", "Shop.Sales", "Shop-Sales", "Shop-Sales"},
		{"test-", "sales", "test-sales", "sales"},
		{"test-", "Shop.Sales", "test-Shop-Sales", "Shop-Sales"},
		{"test-", "test-Shop.Sales", "test-Shop-Sales", "Shop-Sales"},
		{"te.st.", "te.st.Shop.Sales", "te-st-Shop-Sales", "Shop-Sales"},
		{"test-", "sales-delay.fifo", "test-sales-delay.fifo", "sales-delay.fifo"},
		{"test-", "test-test-x", "test-test-x", "test-test-x"}, // test-x would be the queue x
		{"test-", "test-", "test-", "test-"},
		{"test", "testing", "testing", "ing"}, // as NServiceBus names the queue of ing
		{"ns", "ns2-x", "ns2-x", "2-x"},
		{"ns-", "ns2-x", "ns-ns2-x", "ns2-x"},
		{"ns-", "nsx", "ns-nsx", "nsx"},
	} {
		c := newConn(Transport{QueuePrefix: test.prefix}, clients{}, transport.Env{})
		for _, same := range []string{test.form, test.address, test.name} {
			if got := c.Address(same); got != test.address {
				t.Errorf("%q with prefix %q has the address %q, want %q", same, test.prefix, got, test.address)
			}
			if got := c.ShortName(same); got != test.name {
				t.Errorf("%q with prefix %q is called %q, want %q", same, test.prefix, got, test.name)
			}
		}
	}
}

func TestAMalformedAddressIsNoQueue(t *testing.T) {
	c := newConn(Transport{QueuePrefix: "test-"}, clients{}, transport.Env{})
	for _, bad := range []string{"", " ", "Größe", strings.Repeat("x", 80), strings.Repeat("x", 1<<20)} {
		_, err := queueName("test-", bad)
		if !errors.Is(err, transport.ErrNoQueue) || len(err.Error()) > 2000 {
			t.Errorf("%.100q: %.200v, want ErrNoQueue", bad, err)
		}
		if c.Address(bad) != bad || c.ShortName(bad) != bad {
			t.Errorf("%.100q has the address %.100q and is called %.100q", bad, c.Address(bad), c.ShortName(bad))
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("test-", "test-Shop.Sales")
	f.Fuzz(func(t *testing.T, prefix, text string) {
		c := newConn(Transport{QueuePrefix: prefix}, clients{}, transport.Env{})
		for _, form := range []string{c.Address(text), c.ShortName(text)} {
			if c.Address(form) != c.Address(text) || c.ShortName(form) != c.ShortName(text) {
				t.Errorf("with prefix %q, %q and its form %q are not one queue", prefix, text, form)
			}
		}
	})
}
