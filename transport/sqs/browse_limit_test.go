package sqs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// Each listing is a delivery, and SQS moves messages that were delivered too often.
func TestListingsStopBeforeARedrivePolicy(t *testing.T) {
	t.Parallel()
	broker := brokertest.SQS(t)
	for name, test := range map[string]struct {
		most, listings int // the limit, and how many listings are permitted
	}{"a low limit": {3, 0}, "a high limit": {26, 13}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := brokertest.Name(t, "error")
			c := open(t, at(broker, false), "")
			install(t, c, transport.Plan{Queues: []transport.Queue{{Name: queue, Shared: true}}})
			limitDeliveries(t, broker, queue, test.most)
			put(t, broker, queue, "a body", nil)
			for listing := range test.listings + 5 {
				listed, err := firstPage(t, c, queue)
				switch {
				case listing < test.listings && (err != nil || listed != 1):
					t.Fatalf("listing %d has %d messages: %v", listing, listed, err)
				case listing >= test.listings && !errors.Is(err, transport.ErrDeliveryLimit):
					t.Fatalf("listing %d: %v, want ErrDeliveryLimit", listing, err)
				case err != nil && !strings.Contains(err.Error(), "redrive policy"):
					t.Errorf("%v has no advice", err)
				}
			}
			for which, want := range map[string]string{queue: "1", queue + "-moved": "0"} {
				if got := attributes(t, broker, sanitised(which))["ApproximateNumberOfMessages"]; got != want {
					t.Errorf("%s has %s messages, want %s", which, got, want)
				}
			}
		})
	}
}

// firstPage returns how many messages the first page of a queue has.
func firstPage(t *testing.T, c transport.Browser, queue string) (n int, err error) {
	t.Helper()
	cur, err := c.Browse(t.Context(), queue)
	if err != nil {
		return 0, err
	}
	defer func() { _ = cur.Close() }()
	ms, err := cur.Next(t.Context(), 1)
	return len(ms), err
}
