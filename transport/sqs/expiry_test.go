package sqs

import (
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

func TestTimesToLiveEndByTheClockOfSQS(t *testing.T) {
	sent := time.UnixMilli(1_700_000_000_000)
	for text, want := range map[string]time.Duration{
		"00:01:30": 90 * time.Second, "1.00:00:00.5000000": 24*time.Hour + 500*time.Millisecond, "10675199.02:48:05.4775807": 0,
		"": 0, "soon": 0, "-00:00:01": 0, "25:00:00": 0,
	} {
		r := decode(foreign(`{"Headers":{"NServiceBus.MessageId":"1","`+timeToBeReceived+`":"`+text+`"},"Body":""}`, nil))
		if want == 0 != r.expires.IsZero() || want > 0 && !r.expires.Equal(sent.Add(want)) {
			t.Errorf("%q: expires %v, want %v later", text, r.expires, want)
		}
		if r.Headers.Len() != 1 {
			t.Errorf("%q: headers %v", text, headersOf(&r.Message))
		}
		if want > 0 {
			at := sent.Add(want)
			if r.expired(at.Add(-time.Minute), 0) || !r.expired(at.Add(-time.Minute), time.Minute) || !r.expired(at, 0) {
				t.Errorf("%q: it does not expire by the clock of SQS", text)
			}
		}
	}
}

func TestATimeToLiveOfCenturiesIsNone(t *testing.T) {
	c := newConn(Transport{}, clients{}, transport.Env{})
	m := &transport.Message{Headers: header.New(header.Field{Name: header.MessageID, Value: messageID})}
	now := time.Now()
	for _, delay := range []time.Duration{0, time.Minute, 20 * time.Minute, longest} {
		for _, ttl := range []time.Duration{longest, longest - time.Second} {
			came := delivered(c.encode(m, now, delay, ttl))
			came.Attributes[sentTimestamp] = strconv.FormatInt(now.UnixMilli(), 10)
			if got := decode(came); got.expired(now.Add(time.Hour), 0) {
				t.Errorf("with a delay of %v and a time to live of %v it expires at %v", delay, ttl, got.expires)
			}
		}
	}
}

func TestAStandInThatTellsNothingOfMessagesLosesNone(t *testing.T) {
	c := newConn((&Transport{}).withDefaults(), clients{}, transport.Env{})
	m := &transport.Message{ID: messageID, Headers: header.New(header.Field{Name: header.MessageID, Value: messageID})}
	now := time.Now()
	untold := func(p payload) *types.Message {
		came := delivered(p)
		came.Attributes = nil
		return came
	}
	if got := decode(untold(c.encode(m, now, 0, time.Minute))); got.expired(now, 0) {
		t.Errorf("it expired at %v", got.expires)
	}
	e := c.hopEntry(&payload{body: "b"}, delayeddelivery.Hop{Message: "m", Deferral: "d", Number: 1}, time.Hour, time.Time{})
	came := asHop(untold(e.payload), now)
	if h := readHop(&came.Message); h.due.Before(now.Add(time.Hour - time.Second)) {
		t.Errorf("it is due at %v, an hour after %v", h.due, now)
	}
}
