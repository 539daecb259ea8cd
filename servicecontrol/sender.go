package servicecontrol

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// sender sends reports over a connection of its own.
type sender struct {
	*reporter
	conn    transport.Conn
	host    host
	address string // of the endpoint's queue
}

// sendTimeout is the time that the broker has to accept a report.
const sendTimeout = 10 * time.Second

// send sends one report. A ttl of 0 is none.
func (s *sender) send(ctx context.Context, queue string, ttl time.Duration, h header.Map, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	m := &transport.Message{ID: newGUID(), Headers: h, Body: body}
	m.Headers.Set(header.MessageID, m.ID)
	_, err := s.conn.Dispatch(ctx, []transport.Operation{{Message: m, Queue: queue, TTL: ttl}})
	if failed, ok := errors.AsType[*transport.DispatchError](err); ok {
		return failed.Ops[0].Err // the only one
	}
	return err
}

// sendJSON sends a message of a type of ServiceControl.
func (s *sender) sendJSON(
	ctx context.Context, queue string, ttl time.Duration, h header.Map, name string, m any,
) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	h.Set(header.EnclosedMessageTypes, name)
	h.Set(header.ContentType, "application/json")
	return s.send(ctx, queue, ttl, h, body)
}

// command returns the headers of heartbeats and results of checks.
func (s *sender) command() (h header.Map) {
	h.Set(header.MessageIntent, header.IntentSend)
	if !s.sendOnly {
		h.Set(header.ReplyToAddress, s.address)
	}
	return h
}

// instant is a time in JSON as ServiceControl reads it: in UTC, in units of 100 ns.
type instant time.Time

// MarshalText returns the time, for instance "2026-01-02T03:04:05.0000000Z".
func (t instant) MarshalText() ([]byte, error) {
	return time.Time(t).UTC().AppendFormat(nil, "2006-01-02T15:04:05.0000000Z"), nil
}

// lifetime is the TTL of a report that is repeated after interval: one that four others have
// followed is worthless.
func lifetime(interval time.Duration) time.Duration {
	if interval > math.MaxInt64/4 {
		return 0 // none
	}
	return 4 * interval
}

// newGUID returns a random UUID (RFC 9562, version 4).
func newGUID() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
