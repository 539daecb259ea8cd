package servicecontrol

import (
	"context"
	"log/slog"
	"time"
)

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
