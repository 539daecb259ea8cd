package sqs

import (
	"strings"
	"testing"
)

func TestQueuesAreCalledAsNServiceBusCallsThem(t *testing.T) {
	for _, test := range []struct{ prefix, address, want string }{
		{"", "Shop.Billing", "Shop-Billing"},
		{"", "shop_billing-1", "shop_billing-1"},
		{"test-", "Shop.Billing", "test-Shop-Billing"},
		{"test-", "test-Shop.Billing", "test-Shop-Billing"},
		{"te.st.", "Shop.Billing", "te-st-Shop-Billing"},
		{"te.st.", "te.st.Shop.Billing", "te-st-Shop-Billing"},
		{"te.st.", "te-st-Shop-Billing", "te-st-Shop-Billing"},
		{"", "Shop.Billing-delay.fifo", "Shop-Billing-delay.fifo"},
		{"", "Shop.fifo.Billing", "Shop-fifo-Billing"},
		{"", "a b/c:d$e+f", "a-b-c-d-e-f"},
		{"", "😀", "--"},
		{"", strings.Repeat("x", 80), strings.Repeat("x", 80)},
		{"p", strings.Repeat("x", 79), "p" + strings.Repeat("x", 79)},
		{"", strings.Repeat("x", 69) + delaySuffix, strings.Repeat("x", 69) + delaySuffix},
	} {
		name, err := queueName(test.prefix, test.address)
		if name != test.want || err != nil {
			t.Errorf("%q with prefix %q is called %q (%v), want %q", test.address, test.prefix, name, err, test.want)
		}
		if again, err := queueName(test.prefix, name); again != name || err != nil {
			t.Errorf("%q with prefix %q is called %q (%v), not what it is called itself", name, test.prefix, again, err)
		}
	}
}

func TestTopicsAreCalledAsNServiceBusCallsThem(t *testing.T) {
	for _, test := range []struct{ prefix, messageType, want string }{
		{"", "Shop.Orders.Placed", "Shop-Orders-Placed"},
		{"test-", "Shop.Orders+Placed", "test-Shop-Orders-Placed"},
		{"", "Shop.Placed, Shop.Messages, Version=1.0.0.0", "Shop-Placed"},
		{"", "OrderPlaced", "OrderPlaced"},
		{"", "Shop.Changed`1[[Shop.Order, Shop, Version=1.0]], Shop", "Shop-Changed-1--Shop-Order--Shop--Version-1-0--"},
		{"test-", "test-Shop", "test-test-Shop"},
		{"", strings.Repeat("x", 256), strings.Repeat("x", 256)},
	} {
		if name, err := topicName(test.prefix, test.messageType); name != test.want || err != nil {
			t.Errorf("the topic of %q with prefix %q is called %q (%v), want %q", test.messageType, test.prefix, name, err, test.want)
		}
	}
}

func TestANameThatAWSDoesNotTakeIsRefusedWithItsReason(t *testing.T) {
	for _, test := range []struct {
		prefix, address, advice string
	}{
		{"", strings.Repeat("x", 81), "has 81 characters, and AWS takes 80"},
		{"prefix-", strings.Repeat("x", 79), "has 86 characters, and AWS takes 80"},
		{"", strings.Repeat("x", 70) + delaySuffix, "has 81 characters, and AWS takes 80"},
		{"", "Größe", `'ö' cannot stand`},
		{"", "東京", `'東' cannot stand`},
		{"", "  ", "no name"},
		{"", "https://sqs.eu-central-1.amazonaws.com/123456789012/sales", "a URL or an ARN: write the name"},
		{"", "arn:aws:sqs:eu-central-1:123456789012:sales", "a URL or an ARN: write the name"},
	} {
		if _, err := queueName(test.prefix, test.address); err == nil || !strings.Contains(err.Error(), test.advice) {
			t.Errorf("%q with prefix %q: %v: want %q", test.address, test.prefix, err, test.advice)
		}
	}
	for _, name := range []string{"", " , Shop", strings.Repeat("x", 257), "Größe"} {
		if topic, err := topicName("", name); err == nil {
			t.Errorf("%q has the topic %q", name, topic)
		}
	}
}

// What SQS takes no letters for must come out as a name that it takes, or as an error.
func FuzzQueueName(f *testing.F) {
	f.Add("", "Shop.Billing")
	f.Add("test.", "a.fifo")
	f.Fuzz(func(t *testing.T, prefix, address string) {
		name, err := queueName(prefix, address)
		if err != nil {
			return
		}
		if len(name) > longestQueue {
			t.Errorf("%q has %d characters", name, len(name))
		}
		stem := strings.TrimSuffix(name, fifoSuffix)
		if at := strings.IndexFunc(stem, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", r)
		}); at >= 0 {
			t.Errorf("%q has a character that SQS does not take", name)
		}
	})
}
