package acceptance_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/servicecontrol"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// serviceControl has the queues of a ServiceControl, and reports to them every second.
func serviceControl(t *testing.T) servicecontrol.Config {
	primary, monitoring := brokertest.Name(t, "Particular.ServiceControl"), brokertest.Name(t, "Particular.Monitoring")
	return servicecontrol.Config{
		HeartbeatQueue: primary, HeartbeatInterval: time.Second,
		CheckQueue: primary, MetricsQueue: monitoring, MetricsInterval: time.Second,
		Checks: []servicecontrol.Check{{
			ID: "Disk", Category: "Storage", Run: func(context.Context) error { return errors.New("voll: 3 < 5 \"Ω\"") },
		}},
	}
}

// reporting starts an endpoint that reports, in a queue with a dot in its name.
func reporting(t *testing.T, broker transport.Transport, sc servicecontrol.Config, log *lockedBuffer) *running {
	t.Helper()
	cfg := sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error { return nil }))
	cfg.Name, cfg.Routes = brokertest.Name(t, "Shop.Sales"), nil
	cfg.Recoverability.ErrorQueue = brokertest.Name(t, "error")
	cfg.Host = endpoint.Host{ID: "0199a2f06f2b7cc1a4c54f1fd0c4c9a1", Name: "rack 7"}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	if err := servicecontrol.Attach(&cfg, sc); err != nil {
		t.Fatal(err)
	}
	return start(t, cfg)
}

// raw is a report as the broker has it.
type raw struct {
	id      string
	ttl     time.Duration
	headers map[string]string
	body    []byte
}

func (r raw) name() string {
	if metric := r.headers["NServiceBus.Metric.Type"]; metric != "" {
		return metric
	}
	full := r.headers["NServiceBus.EnclosedMessageTypes"]
	return full[strings.LastIndex(full, ".")+1:]
}

// wantReports compares one report of each name with the specification. address is that of the
// endpoint's queue.
func wantReports(t *testing.T, found map[string]raw, name, address string) {
	t.Helper()
	const guid = "0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1"
	for _, c := range []struct {
		name, fullName string
		ttl            time.Duration
		body           map[string]any
	}{
		{"RegisterEndpointStartup", "ServiceControl.Plugin.Heartbeat.Messages.", 4 * time.Second, map[string]any{
			"HostId": guid, "Endpoint": name, "HostDisplayName": "rack 7", "Host": "rack 7",
		}},
		{"EndpointHeartbeat", "ServiceControl.Plugin.Heartbeat.Messages.", 4 * time.Second, map[string]any{
			"HostId": guid, "EndpointName": name, "Host": "rack 7",
		}},
		{"ReportCustomCheckResult", "ServiceControl.Plugin.CustomChecks.Messages.", 0, map[string]any{
			"HostId": guid, "CustomCheckId": "Disk", "Category": "Storage", "HasFailed": true,
			"FailureReason": "voll: 3 < 5 \"Ω\"", "EndpointName": name, "Host": "rack 7",
		}},
	} {
		r, ok := found[c.name]
		if !ok {
			t.Errorf("no %s", c.name)
			continue
		}
		want := map[string]string{
			"NServiceBus.EnclosedMessageTypes": c.fullName + c.name, "NServiceBus.ContentType": "application/json",
			"NServiceBus.MessageIntent": "Send", "NServiceBus.ReplyToAddress": address, "NServiceBus.MessageId": r.id,
		}
		if diff := cmp.Diff(want, r.headers); diff != "" || r.ttl != c.ttl {
			t.Errorf("%s expires after %v: %s", c.name, r.ttl, diff)
		}
		var body map[string]any
		if err := json.Unmarshal(r.body, &body); err != nil {
			t.Errorf("%s: %v", r.body, err)
		}
		for _, of := range []string{"StartedAt", "ExecutedAt", "ReportedAt"} {
			if text, ok := body[of].(string); ok {
				at, err := time.Parse("2006-01-02T15:04:05.0000000Z", text)
				if err != nil || time.Since(at).Abs() > timeLimit {
					t.Errorf("%s of %s is %q", of, c.name, text)
				}
				delete(body, of)
			}
		}
		delete(body, "HostProperties")
		if diff := cmp.Diff(c.body, body); diff != "" {
			t.Error(diff)
		}
	}
}

// wantOrigin checks the headers of metrics.
func wantOrigin(t *testing.T, r raw, name string, more map[string]string) {
	t.Helper()
	want := map[string]string{
		"NServiceBus.OriginatingEndpoint": name, "NServiceBus.OriginatingMachine": r.headers["NServiceBus.OriginatingMachine"],
		"$.diagnostics.originating.hostid": "0199a2f06f2b7cc1a4c54f1fd0c4c9a1", "$.diagnostics.hostdisplayname": "rack 7",
		"NServiceBus.MessageId": r.id,
	}
	for header, value := range more {
		want[header] = value
	}
	if diff := cmp.Diff(want, r.headers); diff != "" || r.ttl != 10*time.Minute {
		t.Errorf("%s expires after %v: %s", r.name(), r.ttl, diff)
	}
}

// wantOneValue checks the bytes of a metric with one value: all but the time and the value itself.
func wantOneValue(t *testing.T, r raw, tag string) {
	t.Helper()
	want := "0100000000000000" + "................" + "01000000" + "01000000" + fmt.Sprintf("%02x000000", len(tag)) +
		hex.EncodeToString([]byte(tag)) + "01000000" + "00000000" + "01000000" + "..........000000"
	got := []byte(hex.EncodeToString(r.body))
	for i := range min(len(want), len(got)) {
		if want[i] == '.' {
			got[i] = '.'
		}
	}
	if string(got) != want {
		t.Errorf("%s is % x, want %s", r.name(), r.body, want)
	}
}

// Reports on RabbitMQ are as ServiceControl reads them.
func TestRabbitMQReports(t *testing.T) {
	t.Parallel()
	url, sc := brokertest.RabbitMQ(t), serviceControl(t)
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	arrived := make(chan amqp.Delivery, 1000)
	for _, queue := range []string{sc.HeartbeatQueue, sc.MetricsQueue} {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for d := range deliveries {
				arrived <- d
			}
		}()
	}
	var log lockedBuffer
	e := reporting(t, &rabbitmq.Transport{URL: url}, sc, &log)
	name := e.Health().Endpoint
	e.send(placeOrder{}, endpoint.To(name))
	found := map[string]raw{}
	for len(found) < 6 {
		r := ofRabbitMQ(t, <-arrived)
		found[r.name()] = r
	}
	wantReports(t, found, name, name)
	wantOrigin(t, found["EndpointMetadataReport"], name, map[string]string{
		"NServiceBus.EnclosedMessageTypes": "NServiceBus.Metrics.EndpointMetadataReport", "NServiceBus.ContentType": "application/json",
	})
	if got, want := string(found["EndpointMetadataReport"].body), `{"PluginVersion":3,"LocalAddress":"`+name+`"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, metric := range []string{"ProcessingTime", "CriticalTime"} {
		wantOrigin(t, found[metric], name, map[string]string{
			"NServiceBus.Metric.Type": metric, "NServiceBus.ContentType": "TaggedLongValueWriterOccurrence",
		})
		wantOneValue(t, found[metric], "Shop.PlaceOrder")
	}
	e.end()
	if log.String() != "" && strings.Contains(log.String(), "ServiceControl") {
		t.Error(log.String())
	}
}

func ofRabbitMQ(t *testing.T, d amqp.Delivery) raw {
	t.Helper()
	r := raw{id: d.MessageId, headers: map[string]string{}, body: d.Body}
	for name, value := range d.Headers {
		if text, ok := value.(string); ok && (strings.HasPrefix(name, "NServiceBus.") || strings.HasPrefix(name, "$.")) {
			r.headers[name] = text
		}
	}
	if d.Expiration != "" {
		ttl, err := time.ParseDuration(d.Expiration + "ms")
		if err != nil {
			t.Error(err)
		}
		r.ttl = ttl
	}
	return r
}

// A queue of RabbitMQ that is full refuses messages, and one that is missing returns them.
func TestReportQueueFullOrMissing(t *testing.T) {
	for name, c := range map[string]struct {
		full bool
		want string
	}{"full": {true, "the queue is full"}, "missing": {false, "no such queue"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, sc := brokertest.RabbitMQ(t), serviceControl(t)
			conn, err := amqp.Dial(url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			ch, err := conn.Channel()
			if err != nil {
				t.Fatal(err)
			}
			if c.full {
				for _, queue := range []string{sc.HeartbeatQueue, sc.MetricsQueue} {
					limits := amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"}
					if _, err := ch.QueueDeclare(queue, true, false, false, false, limits); err != nil {
						t.Fatal(err)
					}
				}
			}
			var log lockedBuffer
			e := reporting(t, &rabbitmq.Transport{URL: url}, sc, &log)
			for _, want := range []string{
				"report=registration", "report=heartbeat", "check=Disk", "report=metrics",
			} {
				awaitLine(t, &log, want)
			}
			e.send(placeOrder{}, endpoint.To(e.Health().Endpoint))
			if !e.Health().Ready {
				t.Errorf("the endpoint is disturbed: %+v", e.Health())
			}
			e.end()
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if len(lines) != 5 || strings.Count(log.String(), c.want) != 4 || !strings.Contains(lines[4], "metrics were dropped") {
				t.Errorf("logged %q, want one line of each kind with %q, and one at the end", lines, c.want)
			}
		})
	}
}

// awaitLine waits until a line with a text is logged.
func awaitLine(t *testing.T, log *lockedBuffer, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); !strings.Contains(log.String(), text); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%q was not logged: %s", text, log.String())
		}
	}
}

// install creates queues as another program does.
func install(t *testing.T, broker transport.Transport, queues ...string) transport.Conn {
	t.Helper()
	conn, err := broker.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	var plan transport.Plan
	for _, queue := range queues {
		plan.Queues = append(plan.Queues, transport.Queue{Name: queue, Shared: true})
	}
	if err := conn.(transport.Installer).Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Reports on PostgreSQL are as ServiceControl reads them, whether the transport has a URL or a pool
// of the program's.
func TestPostgresReports(t *testing.T) {
	onBrokers(t, []string{"URL"}, []string{"Pool"}, func(t *testing.T, kind string) {
		url, sc := brokertest.Postgres(t), serviceControl(t)
		conn := install(t, &postgres.Transport{URL: url}, sc.HeartbeatQueue, sc.MetricsQueue)
		pool, err := pgxpool.New(t.Context(), url)
		must(t, err)
		t.Cleanup(pool.Close)
		broker := &postgres.Transport{URL: url}
		if kind == "Pool" {
			broker = &postgres.Transport{Pool: pool}
		}
		var log lockedBuffer
		e := reporting(t, broker, sc, &log)
		name := e.Health().Endpoint
		e.send(placeOrder{}, endpoint.To(name))
		found := map[string]raw{}
		for len(found) < 6 {
			for _, queue := range []string{sc.HeartbeatQueue, sc.MetricsQueue} {
				for _, r := range ofPostgres(t, pool, queue) {
					if _, seen := found[r.name()]; !seen { // later its time to live may be over
						found[r.name()] = r
					}
				}
			}
			nextLook(t.Context())
		}
		address := `"public"."` + name + `"`
		wantReports(t, found, name, address)
		if _, ok := found["EndpointMetadataReport"]; ok {
			t.Error("there is a metadata report")
		}
		for metric, tag := range map[string]string{"ProcessingTime": "Shop.PlaceOrder", "CriticalTime": "Shop.PlaceOrder", "QueueLength": address} {
			wantOrigin(t, found[metric], name, map[string]string{
				"NServiceBus.Metric.Type": metric, "NServiceBus.ContentType": "TaggedLongValueWriterOccurrence",
			})
			wantOneValue(t, found[metric], tag)
		}
		e.end()
		if strings.Contains(log.String(), "ServiceControl") {
			t.Error(log.String())
		}
		awaitExpiry(t, conn, sc.HeartbeatQueue, 1)
	})
}

// ofPostgres reads the reports of a queue table as NServiceBus's receiver does.
func ofPostgres(t *testing.T, pool *pgxpool.Pool, queue string) (all []raw) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT headers::text, body, coalesce(extract(epoch FROM expires - clock_timestamp()), 0)::float8
		FROM `+pgx.Identifier{queue}.Sanitize())
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var headers string
		var left float64
		r := raw{headers: map[string]string{}}
		if err := rows.Scan(&headers, &r.body, &left); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(headers), &r.headers); err != nil {
			t.Fatal(err)
		}
		r.id = r.headers["NServiceBus.MessageId"]
		switch s := time.Duration(left * float64(time.Second)); { // a part of it is over
		case s > 4*time.Second && s <= 10*time.Minute:
			r.ttl = 10 * time.Minute
		case s > 0:
			r.ttl = 4 * time.Second
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// awaitExpiry waits until left messages can be received: 1, if the result of the check, which does
// not expire, is among them.
func awaitExpiry(t *testing.T, conn transport.Conn, queue string, left int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	for {
		stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
		if err != nil {
			t.Fatalf("the heartbeats do not expire: %v", err)
		}
		if stats[0].Ready == left {
			return
		}
		nextLook(ctx)
	}
}

// On the brokers of the cloud the bytes of metrics travel in texts and properties.
func TestCloudReports(t *testing.T) {
	onBrokers(t, []string{"servicebus"}, []string{"sqs"}, func(t *testing.T, kind string) {
		var broker transport.Transport = &sqs.Transport{Endpoint: brokertest.SQS(t), Config: awsConfig(), QueuePrefix: "shop-"}
		if kind == "servicebus" {
			ns := brokertest.ServiceBus(t)
			broker = &asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin, Hierarchy: brokertest.Name(t, "shop")}
		}
		sc := serviceControl(t)
		conn := install(t, broker, sc.HeartbeatQueue, sc.MetricsQueue)
		var log lockedBuffer
		reports := receiveReports(t, conn, sc.HeartbeatQueue, sc.MetricsQueue) // before they can expire
		e := reporting(t, broker, sc, &log)
		name := e.Health().Endpoint
		e.send(placeOrder{}, endpoint.To(name))
		found := reports(6)
		address := conn.(transport.Addresser).Address(name)
		for _, metric := range []string{"ProcessingTime", "CriticalTime"} {
			wantOneValue(t, found[metric], "Shop.PlaceOrder")
		}
		if got := found["EndpointHeartbeat"].headers["NServiceBus.ReplyToAddress"]; got != address || got == name {
			t.Errorf("the address for replies is %q, want %q", got, address)
		}
		want, err := json.Marshal(map[string]any{"PluginVersion": 3, "LocalAddress": address})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(decoded(t, want), decoded(t, found["EndpointMetadataReport"].body)); diff != "" {
			t.Error(diff)
		}
		e.end()
		if strings.Contains(log.String(), "ServiceControl") {
			t.Error(log.String())
		}
		if kind != "sqs" { // whose receivers discard what has expired
			awaitExpiry(t, conn, sc.HeartbeatQueue, 0)
		}
	})
}

func decoded(t *testing.T, body []byte) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	return m
}

// receiveReports receives from now on. The function that it returns waits until there are n kinds
// of reports, and ends that.
func receiveReports(t *testing.T, conn transport.Conn, queues ...string) func(n int) map[string]raw {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	arrived := make(chan *transport.Message)
	var receivers []transport.Receiver
	var wg sync.WaitGroup
	end := sync.OnceFunc(func() {
		for _, r := range receivers {
			_ = r.Close()
		}
		cancel()
		wg.Wait()
	})
	t.Cleanup(end)
	for _, queue := range queues {
		r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
		receivers = append(receivers, r)
		r.Window(100)
		wg.Go(func() {
			for {
				ds, err := r.Receive(ctx, 10)
				if err != nil {
					return
				}
				for _, d := range ds {
					if err := d.Complete(ctx); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
					select {
					case arrived <- d.Message():
					case <-ctx.Done():
					}
				}
			}
		})
	}
	return func(n int) map[string]raw {
		t.Helper()
		defer end()
		found := map[string]raw{}
		for len(found) < n {
			select {
			case m := <-arrived:
				r := raw{id: m.ID, headers: map[string]string{}, body: m.Body}
				for name, value := range m.Headers.All() {
					r.headers[name] = value
				}
				found[r.name()] = r
			case <-ctx.Done():
				t.Fatalf("only %d kinds of reports", len(found))
			}
		}
		return found
	}
}

// The connection for reports to a SQLite file is beside that of the endpoint.
func TestReportsShareASQLiteFileWithTheEndpoint(t *testing.T) {
	t.Parallel()
	broker, sc := &sqlite.Transport{Path: t.TempDir() + "/queues.db"}, serviceControl(t)
	conn := install(t, broker, sc.HeartbeatQueue, sc.MetricsQueue)
	var log lockedBuffer
	e := reporting(t, broker, sc, &log)
	for range 100 {
		e.send(placeOrder{}, endpoint.To(e.Health().Endpoint))
	}
	awaitReady(t, conn, sc.MetricsQueue, 3)
	e.end()
	if strings.Contains(log.String(), "WARN") {
		t.Error(log.String())
	}
	awaitExpiry(t, conn, sc.HeartbeatQueue, 1)
}

// awaitReady waits until a queue has so many messages.
func awaitReady(t *testing.T, conn transport.Conn, queue string, n int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	for {
		stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
		if err != nil {
			t.Fatalf("no %d messages: %v", n, err)
		}
		if stats[0].Ready >= n {
			return
		}
		nextLook(ctx)
	}
}
