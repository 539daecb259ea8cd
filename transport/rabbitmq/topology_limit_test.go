package rabbitmq

import (
	"encoding/json"
	"testing"
)

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
