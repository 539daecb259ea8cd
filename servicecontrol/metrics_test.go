package servicecontrol_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/servicecontrol"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var measured = servicecontrol.Config{MetricsQueue: monitoring}

// as is a transport under the name of another broker.
type as struct {
	transport.Transport
	system string
}

func (a as) System() string { return a.system }

// values returns the reported values of a metric: "time value tag", as an independent reader of the
// format sees them.
func (l *landscape) values(metric string) (all []string) {
	l.t.Helper()
	for _, r := range l.reports("") {
		if r.Headers.Get("NServiceBus.Metric.Type") != metric {
			continue
		}
		b := bytes.NewReader(r.Body)
		next := func(into any) {
			if err := binary.Read(b, binary.LittleEndian, into); err != nil {
				l.t.Fatalf("%s: %v in % x", metric, err, r.Body)
			}
		}
		var version, base, v int64
		var n, key, length, offset int32
		next(&version)
		next(&base)
		next(&n)
		tags := map[int32]string{}
		for range n {
			next(&key)
			next(&length)
			text := make([]byte, length)
			next(text)
			tags[key] = string(text)
		}
		next(&n)
		for range n {
			next(&offset)
			next(&key)
			next(&v)
			const perSecond, year1 = 10_000_000, -62_135_596_800
			ticks := base + int64(offset)
			at := time.Unix(ticks/perSecond+year1, ticks%perSecond*100)
			all = append(all, fmt.Sprintf("%v %d %s", at.Sub(l.start), v, tags[key]))
		}
		if b.Len() > 0 || version != 1 {
			l.t.Errorf("%d bytes after the end of version %d", b.Len(), version)
		}
	}
	return all
}

// working is a handler that takes as many seconds as N, and less at a stop.
var working = endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, m placeOrder) error {
	select {
	case <-time.After(time.Duration(m.N) * time.Second):
	case <-ctx.Done():
	}
	return nil
})

// If monitoring asks the broker for lengths, metadata makes the endpoint known.
func TestMetadataNamesTheEndpointToMonitoring(t *testing.T) {
	for _, system := range []string{"rabbitmq", "aws_sqs", "servicebus"} {
		inLandscape(t, func(t *testing.T, l *landscape) {
			l.serve(monitoring)
			cfg := l.sales()
			cfg.Transport = as{l.broker, system}
			l.run(cfg, measured)
			pass(20 * time.Second)
			reports := l.reports("EndpointMetadataReport")
			if len(reports) != 3 || reports[0].After != 0 || reports[2].After != 20*time.Second {
				t.Fatalf("%d reports, want one at the start and one every 10 s", len(reports))
			}
			got := reports[1].headers(t)
			if got["NServiceBus.OriginatingMachine"] == "" {
				t.Error("no machine")
			}
			delete(got, "NServiceBus.OriginatingMachine")
			if diff := cmp.Diff(map[string]string{
				"NServiceBus.EnclosedMessageTypes": "NServiceBus.Metrics.EndpointMetadataReport",
				"NServiceBus.ContentType":          "application/json", "NServiceBus.OriginatingEndpoint": "Sales",
				"$.diagnostics.originating.hostid": hostID, "$.diagnostics.hostdisplayname": "rack 7",
			}, got); diff != "" {
				t.Error(diff)
			}
			sameJSON(t, reports[1].Body, map[string]any{"PluginVersion": 3.0, "LocalAddress": "Sales"})
			if len(l.reports("")) != 0 {
				t.Error("there are values")
			}
		})
	}
}

// What Monitoring reads from a database counts delayed messages: there the endpoint reports the
// length itself.
func TestOnADatabaseTheQueueLengthIsReported(t *testing.T) {
	for _, system := range []string{"postgresql", "microsoft.sql_server", "sqlite", "novelty"} {
		inLandscape(t, func(t *testing.T, l *landscape) {
			l.serve(monitoring)
			cfg := l.sales(working)
			cfg.Transport, cfg.Concurrency = as{l.broker, system}, 1
			e := l.run(cfg, measured)
			if diff := cmp.Diff([]string{"0s 0 Sales"}, l.values("QueueLength")); diff != "" {
				t.Errorf("at the start: %s", diff)
			}
			pass(4 * time.Second)
			for range 3 {
				e.place(3600)
			}
			e.place(1, endpoint.After(time.Hour))
			pass(27 * time.Second) // the values of 20 s and 25 s are sent with those of 30 s, or before
			got := l.values("QueueLength")
			if len(got) < 6 || got[1] == got[0] || !strings.HasSuffix(got[4], " Sales") {
				t.Fatalf("values %q", got)
			}
			stats := l.inspect("Sales")
			if want := fmt.Sprintf("20s %d Sales", stats.Ready); got[4] != want || stats.Delayed != 1 || stats.Unsettled < 1 {
				t.Errorf("the value is %q, want %q of %+v", got[4], want, stats)
			}
			if len(l.reports("EndpointMetadataReport")) != 0 {
				t.Error("there is a metadata report")
			}
		})
	}
}

// inspect returns the depth of a queue.
func (l *landscape) inspect(queue string) transport.QueueStats {
	l.t.Helper()
	conn, err := l.broker.Open(l.t.Context(), transport.Env{})
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close()
	stats, err := conn.(transport.Inspector).Inspect(l.t.Context(), queue)
	if err != nil {
		l.t.Fatal(err)
	}
	return stats[0]
}

func TestWithoutAnInspectorThereIsMetadata(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.broker.Without = inmemory.Inspector
		l.serve(monitoring)
		l.run(l.sales(), measured)
		if len(l.reports("EndpointMetadataReport")) != 1 {
			t.Error("nothing makes the endpoint known")
		}
	})
}

// The times of processed messages are reported with the messages' types.
func TestProcessingTimesAreReportedWithTypes(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(monitoring)
		e := l.run(l.sales(working), measured)
		pass(500 * time.Millisecond)
		e.place(2)
		e.place(1, endpoint.After(4*time.Second)) // due at 6.5 s, processed at 7.5 s
		pass(19 * time.Second)
		for metric, want := range map[string][]string{
			"ProcessingTime": {"2.5s 2000 Shop.PlaceOrder", "5.5s 1000 Shop.PlaceOrder"},
			"CriticalTime":   {"2.5s 2000 Shop.PlaceOrder", "5.5s 1000 Shop.PlaceOrder"}, // the delay is not part of it
			"Retries":        nil,
		} {
			if diff := cmp.Diff(want, l.values(metric)); diff != "" {
				t.Errorf("%s: %s", metric, diff)
			}
		}
		for _, r := range l.reports("") {
			got := r.headers(t)
			delete(got, "NServiceBus.OriginatingMachine")
			if diff := cmp.Diff(map[string]string{
				"NServiceBus.ContentType": "TaggedLongValueWriterOccurrence", "NServiceBus.OriginatingEndpoint": "Sales",
				"NServiceBus.Metric.Type":          got["NServiceBus.Metric.Type"],
				"$.diagnostics.originating.hostid": hostID, "$.diagnostics.hostdisplayname": "rack 7",
			}, got); diff != "" {
				t.Error(diff)
			}
		}
	})
}

func TestOnlySuccessesHaveTimesAndEachRetryCountsOnce(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(monitoring, "error")
		attempts := 0
		cfg := l.sales(endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m placeOrder) error {
			attempts++
			time.Sleep(100 * time.Millisecond)
			if m.N == 0 || attempts < 5 {
				return errors.New("not yet")
			}
			return nil
		}))
		cfg.Recoverability = recoverability.Config{
			Immediate: 2, Delayed: 2, Delays: recoverability.Delays{Delay: 2 * time.Second},
		}
		e := l.run(cfg, measured)
		e.place(1) // two immediate retries, a delayed one, an immediate one: then a success
		pass(29 * time.Second)
		if n := len(l.values("Retries")); n != 4 || !strings.HasSuffix(l.values("Retries")[2], " 1 Shop.PlaceOrder") {
			t.Errorf("retries %q", l.values("Retries"))
		}
		if got := l.values("ProcessingTime"); len(got) != 1 || !strings.HasSuffix(got[0], " 100 Shop.PlaceOrder") {
			t.Errorf("processing times %q, want that of the last attempt", got)
		}
		e.place(0) // 8 retries, then the error queue
		pass(time.Minute)
		if n := len(l.values("Retries")); n != 4+8 {
			t.Errorf("%d retries, want 12", n)
		}
		if n := len(l.values("ProcessingTime")) + len(l.values("CriticalTime")); n != 2 {
			t.Errorf("%d times, want two of the one success", n)
		}
	})
}

// A handler that succeeds is not enough: its messages have to be sent too.
func TestAMessageWithUnsentMessagesIsUnprocessed(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(monitoring, "error")
		cfg := l.sales(endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
			return s.Send(ctx, placeOrder{2}, endpoint.To("nowhere"))
		}))
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
		e := l.run(cfg, measured)
		e.place(1)
		pass(time.Minute)
		if times, retries := l.values("ProcessingTime"), l.values("Retries"); len(times) != 0 || len(retries) != 1 {
			t.Errorf("processing times %q, retries %q, want one retry only", times, retries)
		}
	})
}

// Values that come fast must not turn into attempts that come as fast.
func TestAQueueThatAcceptsNothingIsTriedOnceAnInterval(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		var tries atomic.Int32
		l.broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == monitoring {
				tries.Add(1)
				return transport.ErrUnreachable
			}
			return nil
		}
		e := l.run(l.sales(working), measured)
		for range 3 {
			for range 5 * 2048 {
				if err := e.Send(t.Context(), placeOrder{0}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			pass(11 * time.Second)
		}
		if n := tries.Load(); n != 4 { // at the start, and after 10, 20 and 30 s
			t.Errorf("%d attempts in 33 s", n)
		}
	})
}

// A message of another program may have any headers.
func TestHeadersOfForeignMessagesNeverDisturbTheMetrics(t *testing.T) {
	for name, c := range map[string]struct {
		headers  []header.Field
		critical []string
	}{
		"assembly": {[]header.Field{
			{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder, Shop, Version=1.0.0.0, Culture=neutral;Shop.ICommand, Shop"},
			{Name: header.TimeSent, Value: "1999-12-31 23:59:58:500000 Z"},
		}, []string{"0s 1500 Shop.PlaceOrder"}},
		"derived type": {[]header.Field{
			{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrderΩ;Shop.PlaceOrder"},
			{Name: header.DeliverAt, Value: "1999-12-31 23:59:59:999000 Z"},
			{Name: header.TimeSent, Value: "0001-01-01 00:00:00:000000 Z"},
		}, []string{"0s 1 Shop.PlaceOrderΩ"}},
		"no time": {[]header.Field{{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"}}, nil},
		"a clock that is fast": {[]header.Field{
			{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"}, {Name: header.TimeSent, Value: "2000-01-01 00:10:00:000000 Z"},
		}, []string{"0s 0 Shop.PlaceOrder"}},
		"no clock": {[]header.Field{
			{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"}, {Name: header.TimeSent, Value: "0001-01-01 00:00:00:000000 Z"},
		}, []string{"0s 9223372036854 Shop.PlaceOrder"}},
		"no date": {[]header.Field{
			{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"}, {Name: header.TimeSent, Value: "yesterday"},
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inLandscape(t, func(t *testing.T, l *landscape) {
				l.serve(monitoring)
				l.run(l.sales(working), measured)
				headers := header.New(c.headers...)
				headers.Set(header.MessageIntent, header.IntentSend)
				if err := l.broker.Put("Sales", &transport.Message{ID: "1", Headers: headers, Body: []byte(`{"N":0}`)}); err != nil {
					t.Fatal(err)
				}
				pass(10 * time.Second)
				if n := len(l.values("ProcessingTime")); n != 1 {
					t.Errorf("%d processing times", n)
				}
				if diff := cmp.Diff(c.critical, l.values("CriticalTime")); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestTheLastValuesAreSentBeforeRunReturns(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(monitoring)
		e := l.run(l.sales(working), measured)
		e.place(3)
		e.end() // the handler takes 3 s
		if diff := cmp.Diff([]string{"3s 3000 Shop.PlaceOrder"}, l.values("ProcessingTime")); diff != "" {
			t.Error(diff)
		}
	})
}

// Values that cannot be sent before the end are counted in the log.
func TestUnsentValuesAtTheEndAreLogged(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		cfg := l.sales(working)
		cfg.Transport = &secondConnHangs{Transport: l.broker}
		e := l.run(cfg, measured)
		e.place(3)
		pass(4 * time.Second)
		began := time.Now()
		e.end()
		lines := l.log.Lines("before the endpoint stopped")
		if len(lines) != 1 || !strings.Contains(lines[0], "values=2") || time.Since(began) != 5*time.Second {
			t.Errorf("after %v logged %q, want one line after 5 s", time.Since(began), lines)
		}
	})
}

func TestMessagesThatAreCompletedFirstAreMeasuredToo(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(monitoring)
		cfg := l.sales(endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m placeOrder) error {
			time.Sleep(time.Second)
			return map[int]error{1: errors.New("no")}[m.N]
		}))
		cfg.Transactions = endpoint.None
		e := l.run(cfg, measured)
		e.place(0)
		e.place(1) // fails, and has no retries
		pass(15 * time.Second)
		if got := l.values("ProcessingTime"); len(got) != 1 || !strings.HasSuffix(got[0], " 1000 Shop.PlaceOrder") {
			t.Errorf("processing times %q", got)
		}
	})
}

func TestAFullMessageDoesNotWaitForTheInterval(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(monitoring)
		e := l.run(l.sales(working), measured)
		for i := range 2048 {
			if err := e.Send(t.Context(), placeOrder{0}); err != nil {
				t.Fatal(i, err)
			}
		}
		synctest.Wait()
		if n := len(l.values("ProcessingTime")); n < 2048 || time.Since(l.start) > 0 {
			t.Errorf("%d values after %v, want 2048 at once", n, time.Since(l.start))
		}
	})
}

// Values wait while the queue is missing, full or not reachable, and are sent once each afterwards.
func TestValuesWaitWhileTheQueueAcceptsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int // of three values
	}{
		"missing":           {transport.ErrNoQueue, 3},
		"full":              {errors.New("resource limit exceeded"), 3},
		"not reachable":     {transport.ErrUnreachable, 3},
		"outcome not known": {transport.ErrOutcomeUnknown, 1}, // the first two may be there
		"too large":         {&transport.TooLargeError{What: "body"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inLandscape(t, func(t *testing.T, l *landscape) {
				var failing atomic.Bool
				l.broker.Fail = func(verb, object string) error {
					if failing.Load() && verb == "Dispatch" && object == monitoring {
						return c.err
					}
					return nil
				}
				l.serve(monitoring)
				e := l.run(l.sales(working), measured)
				failing.Store(true)
				for range 2 {
					e.place(1)
					pass(15 * time.Second)
				}
				pass(5 * time.Minute)
				if n := len(l.failures("metrics")); n < 5 || n > 7 {
					t.Errorf("%d lines in five minutes", n)
				}
				failing.Store(false)
				e.place(1)
				pass(15 * time.Second)
				got := l.values("ProcessingTime")
				if len(got) != c.want || len(slices.Compact(slices.Clone(got))) != len(got) {
					t.Errorf("%q, want %d values, each once", got, c.want)
				}
				if n := len(l.log.Lines("succeed again")); n != 1 {
					t.Errorf("%d lines about the end of the failure", n)
				}
			})
		})
	}
}

func TestMetricsExpireAfterTenMinutes(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.broker.CreateQueues(monitoring)
		cfg := l.sales()
		cfg.Transport = as{l.broker, "rabbitmq"}
		l.run(cfg, measured)
		pass(time.Hour + time.Second)
		l.serve(monitoring)
		synctest.Wait()
		if n := len(l.reports("EndpointMetadataReport")); n != 60 {
			t.Errorf("%d reports waited, want those of ten minutes", n)
		}
	})
}

func TestALengthThatCannotBeMeasuredIsLoggedOnceAMinute(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		var failing atomic.Bool
		l.broker.Fail = func(verb, _ string) error {
			if verb == "Inspect" && failing.Load() {
				return errors.New("access refused")
			}
			return nil
		}
		l.serve(monitoring)
		e := l.run(l.sales(working), measured)
		failing.Store(true)
		e.place(1)
		pass(5*time.Minute + time.Second)
		if n := len(l.failures(`"queue length"`)); n != 5 && n != 6 {
			t.Errorf("%d lines", n)
		}
		if len(l.values("ProcessingTime")) != 1 {
			t.Error("the other metrics are not sent")
		}
	})
}

func BenchmarkMeasure(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("metrics=%v", with), func(b *testing.B) {
			broker := &inmemory.Transport{}
			broker.CreateQueues(monitoring)
			handled := make(chan struct{}, 1)
			cfg := endpoint.Config{
				Name: "Sales", Transport: broker, Install: true,
				Messages: []endpoint.Message{endpoint.Command[placeOrder]("Shop.PlaceOrder").To("Sales")},
				Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error {
					handled <- struct{}{}
					return nil
				})},
			}
			if with {
				if err := servicecontrol.Attach(&cfg, measured); err != nil {
					b.Fatal(err)
				}
			}
			e, err := endpoint.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			if err := e.WaitReady(ctx); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := e.Send(ctx, placeOrder{1}); err != nil {
					b.Fatal(err)
				}
				<-handled
			}
			stop()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
