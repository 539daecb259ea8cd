package rabbitmq

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// Before 4.3 each look at a message is a return. A message is replaced by a copy before it has
// returned as often as its queue permits, and a queue that permits no return is not looked at.
func TestLooksStayWithinADeliveryLimit(t *testing.T) {
	for limit, want := range map[string]int64{"1": 0, "2": 1, "3": 2, "10": 9, "11": 10, "20": maxLooks, "100": maxLooks, "-1": -1, "0": -1} {
		var q managedQueue
		if err := json.Unmarshal([]byte(`{"type":"quorum","arguments":{"x-delivery-limit":`+limit+`},"effective_policy_definition":[]}`), &q); err != nil {
			t.Fatal(err)
		}
		looks, err := looksWithin(q, version{3, 10})
		if want < 0 {
			if !errors.Is(err, transport.ErrDeliveryLimit) {
				t.Errorf("limit %s: %v, want ErrDeliveryLimit", limit, err)
			}
			continue
		}
		if err != nil || looks != want {
			t.Errorf("limit %s: replaced after %d returns, %v, want %d", limit, looks, err, want)
		}
	}
	if looks, err := looksWithin(managedQueue{Type: "classic"}, version{3, 10}); looks != maxLooks || err != nil {
		t.Errorf("a classic queue: %d, %v", looks, err)
	}
}

// Shared queues are looked at by tools: Verify names those with a low limit that is set.
func TestVerifyNamesSharedQueuesThatLimitLooks(t *testing.T) {
	for queue, want := range map[string]bool{
		`{"type":"quorum","arguments":{"x-delivery-limit":5},"effective_policy_definition":[]}`:                 true,
		`{"type":"quorum","arguments":[],"effective_policy_definition":{"delivery-limit":3},"policy":"p"}`:      true,
		`{"type":"quorum","arguments":{"x-delivery-limit":50},"effective_policy_definition":[]}`:                false,
		`{"type":"quorum","arguments":[],"effective_policy_definition":[]}`:                                     false,
		`{"type":"quorum","arguments":[],"effective_policy_definition":{"delivery-limit":100000},"policy":"p"}`: false,
	} {
		var q managedQueue
		if err := json.Unmarshal([]byte(queue), &q); err != nil {
			t.Fatal(err)
		}
		s := &lifter{&core{}}
		s.version = version{3, 10}
		if found := s.limits(part{name: "error"}, q); (len(found) > 0) != want {
			t.Errorf("%s: %v", queue, found)
		}
	}
}

// The forms are those of the management API of 3.10.8, 4.0.5 and 4.3.6.
func TestTheDeliveryLimitOfAQueueIsRead(t *testing.T) {
	old, recent := version{3, 10}, version{4, 0}
	for _, test := range []struct {
		version version
		queue   string
		want    int64 // -1: none
	}{
		{old, `{"type":"quorum","arguments":{"x-queue-type":"quorum"},"effective_policy_definition":[]}`, -1},
		{old, `{"type":"quorum","arguments":{"x-delivery-limit":100},"effective_policy_definition":[]}`, 100},
		{old, `{"type":"quorum","arguments":{"x-delivery-limit":100},"effective_policy_definition":{"delivery-limit":7}}`, 7},
		{old, `{"type":"quorum","arguments":{"x-delivery-limit":5},"effective_policy_definition":{"delivery-limit":100000}}`, 5},
		{old, `{"type":"quorum","arguments":[],"effective_policy_definition":{"delivery-limit":100000}}`, -1},
		{old, `{"type":"quorum","arguments":{"x-delivery-limit":-1},"effective_policy_definition":{}}`, 0},
		{recent, `{"type":"quorum","arguments":{},"effective_policy_definition":{},"delivery_limit":20}`, 20},
		{recent, `{"type":"quorum","arguments":{},"effective_policy_definition":{"delivery-limit":100000},"delivery_limit":100000}`, -1},
		{recent, `{"type":"quorum","arguments":{"x-delivery-limit":-1},"effective_policy_definition":{},"delivery_limit":"unlimited"}`, -1},
		{recent, `{"type":"quorum","arguments":{},"effective_policy_definition":{"delivery-limit":7},"delivery_limit":7}`, 7},
		{recent, `{"type":"quorum","arguments":{}}`, -1}, // not reported yet
		{recent, `{"type":"classic","arguments":{},"effective_policy_definition":{"delivery-limit":7}}`, -1},
		{recent, `{"type":"stream","arguments":{},"effective_policy_definition":{},"delivery_limit":20}`, -1},
	} {
		var q managedQueue
		if err := json.Unmarshal([]byte(test.queue), &q); err != nil {
			t.Fatal(err)
		}
		l, ok := q.limit(test.version)
		if ok != (test.want >= 0) || ok && l.returns != test.want {
			t.Errorf("%v %s: limit %d (%t), want %d", test.version, test.queue, l.returns, ok, test.want)
		}
	}
}
