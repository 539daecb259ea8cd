package servicecontrol_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/servicecontrol"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestAMistakeInTheConfigIsNamed(t *testing.T) {
	type config = servicecontrol.Config
	type check = servicecontrol.Check
	ok := func(context.Context) error { return nil }
	with := func(checks ...check) config { return config{Checks: checks} }
	for name, c := range map[string]struct {
		sc   config
		want string
	}{
		"own queue":             {config{HeartbeatQueue: "Sales"}, `HeartbeatQueue is the endpoint's own queue, "Sales"`},
		"own queue for checks":  {config{CheckQueue: "Sales"}, `CheckQueue is the endpoint's own queue`},
		"own queue for metrics": {config{MetricsQueue: "Sales"}, `MetricsQueue is the endpoint's own queue`},
		"negative":              {config{HeartbeatInterval: -1}, "HeartbeatInterval is -1ns: it must be at least 1s"},
		"too often":             {config{HeartbeatInterval: time.Millisecond}, "at least 1s"},
		"metrics too often":     {config{MetricsInterval: time.Millisecond}, "MetricsInterval is 1ms: it must be from 1s to 30s"},
		"metrics too seldom":    {config{MetricsInterval: 31 * time.Second}, "from 1s to 30s"},
		"no ID":                 {with(check{Category: "a", Run: ok}), "Checks[0] needs an ID"},
		"no category":           {with(check{ID: "a", Run: ok}), "Checks[0] needs an ID, a Category"},
		"no function":           {with(check{ID: "a", Category: "a"}), "a Run function"},
		"negative time limit":   {with(check{ID: "a", Category: "a", Run: ok, Timeout: -1}), "negative Timeout"},
		"negative interval":     {with(check{ID: "a", Category: "a", Run: ok, Interval: -1}), "Interval of -1ns"},
		"one ID for two": {
			with(check{ID: "a", Category: "a", Run: ok}, check{ID: "a", Category: "b", Run: ok}),
			`Checks[1] has the ID "a" of another check`,
		},
		"the first of two mistakes": {config{MetricsInterval: -1, HeartbeatInterval: -1}, "HeartbeatInterval"},
		"the second of two":         {config{MetricsInterval: -1, HeartbeatInterval: -1}, "MetricsInterval"},
	} {
		cfg := endpoint.Config{Name: "Sales", Transport: &inmemory.Transport{}}
		err := servicecontrol.Attach(&cfg, c.sc)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `endpoint "Sales"`) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if len(cfg.Background)+len(cfg.Notify)+len(cfg.Pipeline.Receive.Names()) > 0 {
			t.Errorf("%s: the endpoint's Config was changed", name)
		}
	}
}

func TestAConfigThatIsNotCompleteIsRefused(t *testing.T) {
	for _, cfg := range []endpoint.Config{{Name: "Sales"}, {Transport: &inmemory.Transport{}}} {
		if err := servicecontrol.Attach(&cfg, heartbeats); err == nil || !strings.Contains(err.Error(), "when it is complete") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	cfg := endpoint.Config{Name: "Sales", Transport: &inmemory.Transport{}, SendOnly: true}
	if err := servicecontrol.Attach(&cfg, measured); err == nil || !strings.Contains(err.Error(), "SendOnly") {
		t.Errorf("metrics of an endpoint that only sends: %v", err)
	}
}

// A part is off until its queue is named: one Config serves where there is no ServiceControl.
func TestWithoutQueuesNothingIsAttached(t *testing.T) {
	cfg := endpoint.Config{Name: "Sales", Transport: &inmemory.Transport{}}
	sc := checked(time.Second, func(context.Context) error { return nil })
	sc.CheckQueue = ""
	if err := servicecontrol.Attach(&cfg, sc); err != nil {
		t.Fatal(err)
	}
	if len(cfg.Background)+len(cfg.Notify)+len(cfg.Pipeline.Receive.Names())+len(cfg.Pipeline.Dispatch.Names()) > 0 {
		t.Errorf("%+v", cfg)
	}
}

func TestEachPartIsOnAlone(t *testing.T) {
	for want, sc := range map[string]servicecontrol.Config{
		"EndpointHeartbeat RegisterEndpointStartup": {HeartbeatQueue: primary, Checks: checked(0, nil).Checks},
		"ReportCustomCheckResult":                   checked(0, func(context.Context) error { return nil }),
		"QueueLength":                               measured,
	} {
		inLandscape(t, func(t *testing.T, l *landscape) {
			if sc.CheckQueue == "" && len(sc.Checks) > 0 {
				sc.Checks[0].Run = func(context.Context) error {
					t.Error("a check runs without a queue")
					return nil
				}
			}
			l.serve(primary, monitoring)
			l.run(l.sales(), sc)
			pass(15 * time.Second)
			found := map[string]bool{}
			for _, r := range l.received {
				found[r.name()+shortName(r.Headers.Get("NServiceBus.Metric.Type"))] = true
			}
			wanted := map[string]bool{}
			for name := range strings.FieldsSeq(want) {
				wanted[name] = true
			}
			if diff := cmp.Diff(wanted, found); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheMeasuringBehaviorsAreOutsideOfTheOthers(t *testing.T) {
	cfg := endpoint.Config{Name: "Sales", Transport: &inmemory.Transport{}}
	cfg.Pipeline.Receive.Use("own", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] { return next })
	if err := servicecontrol.Attach(&cfg, measured); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"servicecontrol to " + monitoring, "own"}, cfg.Pipeline.Receive.Names()); diff != "" {
		t.Error(diff)
	}
	if err := servicecontrol.Attach(&cfg, measured); err != nil {
		t.Fatal(err)
	}
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), `is there already`) {
		t.Errorf("metrics that are counted twice: %v", err)
	}
}

// Reports of metrics may go to two Monitoring instances, which get the same values.
func TestMetricsMayGoToTwoQueues(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(monitoring, "Other.Monitoring")
		cfg := l.sales(working)
		if err := servicecontrol.Attach(&cfg, servicecontrol.Config{MetricsQueue: "Other.Monitoring"}); err != nil {
			t.Fatal(err)
		}
		l.run(cfg, measured).place(1)
		pass(10 * time.Second)
		for _, metric := range []string{"ProcessingTime", "CriticalTime"} {
			queues := map[string]int{}
			for _, r := range l.reports("") {
				if r.Headers.Get("NServiceBus.Metric.Type") == metric {
					queues[r.Queue]++
				}
			}
			if diff := cmp.Diff(map[string]int{monitoring: 1, "Other.Monitoring": 1}, queues); diff != "" {
				t.Errorf("messages with %s: %s", metric, diff)
			}
		}
	})
}

// Reports of heartbeats may go to two ServiceControls.
func TestHeartbeatsMayGoToTwoQueues(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary, "Other.ServiceControl")
		cfg := l.sales()
		if err := servicecontrol.Attach(&cfg, servicecontrol.Config{HeartbeatQueue: "Other.ServiceControl"}); err != nil {
			t.Fatal(err)
		}
		l.run(cfg, heartbeats)
		pass(10 * time.Second)
		queues := map[string]int{}
		for _, r := range l.reports("EndpointHeartbeat") {
			queues[r.Queue]++
		}
		if diff := cmp.Diff(map[string]int{primary: 1, "Other.ServiceControl": 1}, queues); diff != "" {
			t.Error(diff)
		}
	})
}

// addressed is a broker whose queues have addresses with a prefix.
type addressed struct{ *inmemory.Transport }

type addressedConn struct{ transport.Conn }

func (a addressed) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := a.Transport.Open(ctx, env)
	return addressedConn{conn}, err
}

func (addressedConn) Address(queue string) string {
	return "shop/" + strings.TrimPrefix(queue, "shop/")
}

func (addressedConn) ShortName(address string) string { return strings.TrimPrefix(address, "shop/") }

func TestReportsAreNotSentToTheOwnQueueByItsAddress(t *testing.T) {
	for _, sc := range []servicecontrol.Config{
		{HeartbeatQueue: "shop/Sales"},
		{MetricsQueue: "shop/Sales"},
		{CheckQueue: "shop/Sales", Checks: checked(0, func(context.Context) error { return nil }).Checks},
	} {
		inLandscape(t, func(t *testing.T, l *landscape) {
			cfg := l.sales(working)
			l.broker.CreateQueues("Sales", "Sales.quarantine", "error")
			cfg.Transport, cfg.Install = addressed{l.broker}, false
			l.run(cfg, sc)
			pass(time.Minute)
			if lines := l.log.Lines("their queue is the endpoint's own"); len(lines) != 1 || len(l.log.Lines("")) != 1 {
				t.Errorf("%+v:\n%s", sc, l.log.Lines(""))
			}
		})
	}
}
