package servicecontrol_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/servicecontrol"
	"github.com/holdfast-go/holdfast/transport"
)

var heartbeats = servicecontrol.Config{HeartbeatQueue: primary}

// An endpoint registers at once, and sends heartbeats as specified.
func TestRegistrationAndHeartbeatsAreAsSpecified(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		l.run(l.sales(), heartbeats)
		pass(25 * time.Second)

		registered := l.reports("RegisterEndpointStartup")
		if len(registered) != 1 || registered[0].After != 0 {
			t.Fatalf("registered %d times, want once at the start", len(registered))
		}
		want := map[string]string{
			"NServiceBus.EnclosedMessageTypes": "ServiceControl.Plugin.Heartbeat.Messages.RegisterEndpointStartup",
			"NServiceBus.ContentType":          "application/json", "NServiceBus.MessageIntent": "Send",
			"NServiceBus.ReplyToAddress": "Sales",
		}
		if diff := cmp.Diff(want, registered[0].headers(t)); diff != "" {
			t.Error(diff)
		}
		sameJSON(t, registered[0].Body, map[string]any{
			"HostId": hostGUID, "Endpoint": "Sales", "StartedAt": "2000-01-01T00:00:00.0000000Z", "HostProperties": "*",
			"HostDisplayName": "rack 7", "Host": "rack 7",
		})

		beats := l.reports("EndpointHeartbeat")
		if len(beats) != 2 || beats[0].After != 10*time.Second || beats[1].After != 20*time.Second {
			t.Fatalf("%d heartbeats: %+v", len(beats), beats)
		}
		want["NServiceBus.EnclosedMessageTypes"] = "ServiceControl.Plugin.Heartbeat.Messages.EndpointHeartbeat"
		if diff := cmp.Diff(want, beats[0].headers(t)); diff != "" {
			t.Error(diff)
		}
		sameJSON(t, beats[1].Body, map[string]any{
			"ExecutedAt": "2000-01-01T00:00:20.0000000Z", "EndpointName": "Sales", "HostId": hostGUID, "Host": "rack 7",
		})
		if beats[0].ID == beats[1].ID {
			t.Error("two messages have one id")
		}
	})
}

// Heartbeats continue until the last handler has returned, and then end.
func TestHeartbeatsEndAfterTheLastHandler(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		slow := endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error {
			time.Sleep(25 * time.Second)
			return nil
		})
		e := l.run(l.sales(slow), heartbeats)
		e.place(1)
		e.end()
		pass(time.Minute)
		if beats := l.reports("EndpointHeartbeat"); len(beats) != 2 {
			t.Errorf("%d heartbeats, want those of the 25 s of the handler", len(beats))
		}
	})
}

func TestTimesAreInUTC(t *testing.T) {
	local := time.Local
	defer func() { time.Local = local }()
	time.Local = time.FixedZone("", 5*3600)
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		l.run(l.sales(), heartbeats)
		pass(10 * time.Second)
		if body := string(l.reports("EndpointHeartbeat")[0].Body); !strings.Contains(body, `"2000-01-01T00:00:10.0000000Z"`) {
			t.Error(body)
		}
	})
}

func TestASendOnlyEndpointHasNoAddressForReplies(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		cfg := l.sales()
		cfg.SendOnly = true
		l.run(cfg, heartbeats)
		pass(10 * time.Second)
		for _, name := range []string{"RegisterEndpointStartup", "EndpointHeartbeat"} {
			if reply, ok := l.reports(name)[0].headers(t)["NServiceBus.ReplyToAddress"]; ok {
				t.Errorf("%s has the address %q", name, reply)
			}
		}
	})
}

// Reports that are not received expire after four intervals, so that they do not fill the queue.
func TestHeartbeatsExpireAfterFourIntervals(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.broker.CreateQueues(primary)
		sc := heartbeats
		sc.HeartbeatInterval = 5 * time.Second
		l.run(l.sales(), sc)
		pass(time.Hour + time.Second)
		l.serve(primary)
		synctest.Wait()
		if n := len(l.reports("EndpointHeartbeat")); n != 4 || len(l.reports("RegisterEndpointStartup")) != 0 {
			t.Errorf("%d heartbeats waited, want those of the last 20 s", n)
		}
	})
}

// A missing queue is logged once a minute, and disturbs no message.
func TestAMissingQueueIsLoggedOnceAMinute(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		var handled atomic.Int32
		e := l.run(l.sales(endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error {
			handled.Add(1)
			return nil
		})), heartbeats)
		pass(10 * time.Second)
		lines := l.failures("heartbeat")
		if len(lines) != 1 || !strings.Contains(lines[0], "queue="+primary) || !strings.Contains(lines[0], "no such queue") {
			t.Fatalf("logged %q, want one line with the queue and the reason", lines)
		}
		pass(10*time.Minute + time.Second)
		if lines = l.failures("heartbeat"); len(lines) != 11 || !strings.Contains(lines[10], "failures=6") {
			t.Errorf("%d lines in 10 minutes, the last %q", len(lines), lines[len(lines)-1])
		}
		if n := len(l.failures("registration")); n != 2 {
			t.Errorf("%d lines about the registration, want 2: it is tried twice", n)
		}
		if e.place(1); handled.Load() != 1 || !e.Health().Ready {
			t.Error("the endpoint is disturbed")
		}

		l.serve(primary)
		pass(10 * time.Second)
		if len(l.reports("EndpointHeartbeat")) != 1 || len(l.reports("RegisterEndpointStartup")) != 0 {
			t.Error("there are other reports than one heartbeat after the queue was made")
		}
		if n := len(l.log.Lines("succeed again")); n != 1 {
			t.Errorf("%d lines about the end of the failure", n)
		}
	})
}

// A failure that comes and goes is logged at most twice a minute.
func TestAFlappingFailureIsLoggedTwiceAMinute(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		var n atomic.Int32
		l.broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == primary && n.Add(1)%2 == 0 {
				return errors.New("resource limit exceeded: the queue is full")
			}
			return nil
		}
		l.serve(primary)
		sc := heartbeats
		sc.HeartbeatInterval = time.Second
		l.run(l.sales(), sc)
		pass(10*time.Minute + 500*time.Millisecond)
		failed, again := len(l.log.Lines("the queue is full")), len(l.log.Lines("succeed again"))
		if failed > 11 || again > 11 || failed < 9 || again < 9 {
			t.Errorf("%d lines about failures and %d about their end in 10 minutes", failed, again)
		}
	})
}

func TestARegistrationThatFailsIsRepeatedAMinuteLater(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.run(l.sales(), heartbeats)
		pass(30 * time.Second)
		l.serve(primary)
		pass(5 * time.Minute)
		registered := l.reports("RegisterEndpointStartup")
		if len(registered) != 1 || registered[0].After != time.Minute {
			t.Fatalf("registered %d times", len(registered))
		}
		if !strings.Contains(string(registered[0].Body), `"StartedAt":"2000-01-01T00:00:00.0000000Z"`) {
			t.Errorf("%s does not have the time of the start", registered[0].Body)
		}
	})
}

// A broker that accepts nothing and does not answer must not delay the endpoint, nor its stop.
func TestABlockedConnectionDelaysNoStop(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.broker.CreateQueues(primary, monitoring)
		release := make(chan struct{})
		defer close(release)
		cfg := l.sales(endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error { return nil }))
		cfg.Transport = &secondConnHangs{Transport: l.broker}
		sc := servicecontrol.Config{
			HeartbeatQueue: primary, MetricsQueue: monitoring, CheckQueue: primary,
			Checks: []servicecontrol.Check{{ID: "a", Category: "b", Run: func(context.Context) error { return nil }}},
		}
		e := l.run(cfg, sc)
		began := time.Now()
		for i := range 100 {
			e.place(i)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("100 messages took %v", took)
		}
		pass(time.Hour)
		if n := len(l.failures("heartbeat")); n < 50 || n > 61 {
			t.Errorf("%d lines in an hour", n)
		}
		stopped := time.Now()
		if e.end(); time.Since(stopped) > 5*time.Second {
			t.Errorf("the stop took %v", time.Since(stopped))
		}
	})
}

// secondConnHangs is a transport whose connections but the first accept nothing.
type secondConnHangs struct {
	transport.Transport
	opened atomic.Int32
}

func (s *secondConnHangs) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := s.Transport.Open(ctx, env)
	if err == nil && s.opened.Add(1) > 1 {
		return hangingConn{conn}, nil
	}
	return conn, err
}

type hangingConn struct{ transport.Conn }

func (hangingConn) Dispatch(ctx context.Context, _ []transport.Operation) ([]transport.Receipt, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// If the connection for reports cannot be opened, the endpoint tries again.
func TestTheConnectionForReportsIsTriedAgain(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		cfg := l.sales()
		cfg.Transport = &secondOpenFails{Transport: l.broker, until: time.Now().Add(95 * time.Second)}
		e := l.run(cfg, heartbeats)
		pass(2 * time.Minute)
		lines := l.failures("connection")
		if len(lines) != 2 || !strings.Contains(lines[0], "too many connections") {
			t.Errorf("logged %q", lines)
		}
		if n := len(l.reports("RegisterEndpointStartup")); n != 1 {
			t.Errorf("registered %d times", n)
		}
		e.end()
	})
}

type secondOpenFails struct {
	transport.Transport
	opened bool
	until  time.Time
}

func (s *secondOpenFails) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	if s.opened && time.Now().Before(s.until) {
		return nil, errors.New("too many connections")
	}
	s.opened = true
	return s.Transport.Open(ctx, env)
}

// ServiceControl tells instances apart by the pair of name and host id.
func TestEndpointsOfOneHostHaveOwnHeartbeats(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		sales, billing := l.sales(), l.sales()
		billing.Name, billing.Messages = "Billing", nil
		var endpoints []*endpoint.Endpoint
		for _, cfg := range []endpoint.Config{sales, billing} {
			if err := servicecontrol.Attach(&cfg, heartbeats); err != nil {
				t.Fatal(err)
			}
			e, err := endpoint.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			endpoints = append(endpoints, e)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if err := endpoint.RunAll(ctx, endpoints...); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		counts := map[string]int{}
		for _, b := range l.reports("EndpointHeartbeat") {
			for _, name := range []string{"Sales", "Billing"} {
				if strings.Contains(string(b.Body), `"EndpointName":"`+name+`","HostId":"`+hostGUID+`"`) {
					counts[name]++
				}
			}
		}
		if diff := cmp.Diff(map[string]int{"Sales": 1, "Billing": 1}, counts); diff != "" {
			t.Error(diff)
		}
	})
}

// The id of reports is that of the headers of failed messages: otherwise ServicePulse lists the
// instance twice.
func TestHeartbeatsAndFailedMessagesNameOneHost(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary, "error")
		cfg := l.sales(endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error { return errors.New("no") }))
		cfg.Host = endpoint.Host{} // the default
		e := l.run(cfg, heartbeats)
		e.place(1)
		pass(10 * time.Minute)
		var failed report
		for _, r := range l.reports("ICommand") {
			if r.Queue == "error" {
				failed = r
			}
		}
		if failed.Message == nil {
			t.Fatal("no message failed")
		}
		id, machine := failed.Headers.Get("$.diagnostics.hostid"), failed.Headers.Get("$.diagnostics.hostdisplayname")
		hostname, err := os.Hostname()
		if err != nil || machine != hostname || len(id) != 32 {
			t.Errorf("the host of the failed message is %q, %q", machine, id)
		}
		sameJSON(t, l.reports("EndpointHeartbeat")[0].Body, map[string]any{
			"ExecutedAt": "*", "EndpointName": "Sales", "Host": machine,
			"HostId": strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-"),
		})
	})
}
