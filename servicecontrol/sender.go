package servicecontrol

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
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

// ownQueue returns a queue of the Config that is another form of the address of the endpoint's own
// queue.
func (s *sender) ownQueue() (queue string, ok bool) {
	for _, queue := range []string{s.HeartbeatQueue, s.CheckQueue, s.MetricsQueue} {
		if queue != "" && addressOf(s.conn, queue) == s.address {
			return queue, true
		}
	}
	return "", false
}

// host names the instance of the endpoint, as the headers of its failed and audited messages do.
type host struct {
	id      string // 32 hexadecimal digits, as in headers
	name    string
	machine string
}

func newHost(h endpoint.Host) host {
	machine, _ := os.Hostname() // "" after an error
	return host{id: h.ID, name: h.Name, machine: cmp.Or(machine, "unknown")}
}

// guid returns the id as JSON bodies need it, with hyphens.
func (h host) guid() string {
	return h.id[:8] + "-" + h.id[8:12] + "-" + h.id[12:16] + "-" + h.id[16:20] + "-" + h.id[20:]
}

// properties describe the process. ServiceControl stores them and shows none.
func (h host) properties() map[string]string {
	program, _ := os.Executable() // "" after an error
	return map[string]string{
		"Machine": h.machine, "ProcessID": strconv.Itoa(os.Getpid()), "PathToExecutable": program,
		"UserName": cmp.Or(os.Getenv("USER"), os.Getenv("USERNAME")),
	}
}

// addressOf returns the address of a queue for other programs.
func addressOf(conn transport.Conn, queue string) string {
	if a, ok := conn.(transport.Addresser); ok {
		return a.Address(queue)
	}
	return queue
}

// The types of the messages about an instance, which ServiceControl compares as texts.
const (
	startupType   = "ServiceControl.Plugin.Heartbeat.Messages.RegisterEndpointStartup"
	heartbeatType = "ServiceControl.Plugin.Heartbeat.Messages.EndpointHeartbeat"
)

// startup makes an instance known to ServiceControl.
type startup struct {
	HostID          string `json:"HostId"`
	Endpoint        string
	StartedAt       instant
	HostProperties  map[string]string
	HostDisplayName string
	Host            string
}

// heartbeat reports that an instance is alive.
type heartbeat struct {
	ExecutedAt   instant
	EndpointName string
	HostID       string `json:"HostId"`
	Host         string
}

// registerAgain is the pause before the second and last attempt to register. The first heartbeat
// that arrives makes the instance known too.
const registerAgain = time.Minute

func (s *sender) register(ctx context.Context, startedAt time.Time) {
	m := startup{
		HostID: s.host.guid(), Endpoint: s.endpoint, StartedAt: instant(startedAt), HostProperties: s.host.properties(),
		HostDisplayName: s.host.name, Host: s.host.name,
	}
	failures := s.failures("registration", slog.String("queue", s.HeartbeatQueue))
	send := func() error {
		err := s.sendJSON(ctx, s.HeartbeatQueue, lifetime(s.HeartbeatInterval), s.command(), startupType, m)
		if err != nil {
			failures.add(ctx, err)
		}
		return err
	}
	if send() != nil && sleep(ctx, registerAgain) == nil && send() == nil {
		failures.ended(ctx)
	}
}

func (s *sender) heartbeats(ctx context.Context) {
	failures := s.failures("heartbeat", slog.String("queue", s.HeartbeatQueue))
	ticker := time.NewTicker(s.HeartbeatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		m := heartbeat{
			ExecutedAt: instant(time.Now()), EndpointName: s.endpoint, HostID: s.host.guid(), Host: s.host.name,
		}
		err := s.sendJSON(ctx, s.HeartbeatQueue, lifetime(s.HeartbeatInterval), s.command(), heartbeatType, m)
		if err != nil {
			failures.add(ctx, err)
			continue
		}
		failures.ended(ctx)
	}
}
