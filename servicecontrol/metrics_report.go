package servicecontrol

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	metadataType = "NServiceBus.Metrics.EndpointMetadataReport"
	// metricType is the header that names the metric of a message with values.
	metricType = "NServiceBus.Metric.Type"
	// metricsLifetime is the TTL of metrics: ServicePulse shows at most the last hour, and most
	// people the last minutes.
	metricsLifetime = 10 * time.Minute
	// flushTimeout bounds the sending of the last values after the endpoint has stopped.
	flushTimeout = 5 * time.Second
)

// metadata makes an endpoint known to Monitoring and names the queue whose length Monitoring asks
// the broker for.
type metadata struct {
	PluginVersion int
	LocalAddress  string
}

// pluginVersion is the version of the reports of NServiceBus that these are equal to.
const pluginVersion = 3

// reportMetrics sends metrics until ctx ends, and then the remaining values.
func (s *sender) reportMetrics(ctx context.Context) {
	m := &metricsReport{
		sender: s, failures: s.failures("metrics", slog.String("queue", s.MetricsQueue)),
		unmeasured: s.failures("queue length", slog.String("queue", s.endpoint)),
	}
	m.length = s.inspector()
	var wg sync.WaitGroup
	if m.length != nil {
		m.measureLength(ctx)
		wg.Go(func() { m.measureLengths(ctx) })
	}
	m.run(ctx)
	wg.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if !m.flush(last) {
		m.failures.log.WarnContext(ctx, "metrics were dropped: they could not be sent before the endpoint stopped",
			slog.Int("values", m.metrics.waiting()))
	}
}

// metricsReport sends the metrics of an endpoint.
type metricsReport struct {
	*sender
	length     transport.Inspector // nil where Monitoring asks the broker for the length of the queue
	failures   *failures
	unmeasured *failures
}

// run reports regularly, and as soon as values fill a message, until ctx ends.
func (m *metricsReport) run(ctx context.Context) {
	full := m.metrics.full
	if !m.report(ctx) {
		full = nil // until the next regular report succeeds
	}
	ticker := time.NewTicker(m.MetricsInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		sent := true
		select {
		case <-ctx.Done():
		case <-full:
			sent = m.flush(ctx)
		case <-ticker.C:
			sent = m.report(ctx)
			full = m.metrics.full
		}
		if !sent {
			full = nil
		}
	}
}

// report sends the values, after the metadata where Monitoring needs that, and reports whether all
// were sent.
func (m *metricsReport) report(ctx context.Context) bool {
	if m.length == nil {
		body := metadata{PluginVersion: pluginVersion, LocalAddress: m.address}
		if err := m.sendJSON(ctx, m.MetricsQueue, metricsLifetime, m.origin(), metadataType, body); err != nil {
			m.failures.add(ctx, err)
			return false
		}
	}
	return m.flush(ctx)
}

// origin returns the headers by which Monitoring knows the instance.
func (m *metricsReport) origin() header.Map {
	return header.New(
		header.Field{Name: header.OriginatingEndpoint, Value: m.endpoint},
		header.Field{Name: header.OriginatingMachine, Value: m.host.machine},
		header.Field{Name: header.OriginatingHostID, Value: m.host.id},
		header.Field{Name: header.HostDisplayName, Value: m.host.name},
	)
}

// flush sends the values that wait, and reports whether all were sent. Otherwise they wait for the
// next flush.
func (m *metricsReport) flush(ctx context.Context) bool {
	for _, s := range m.metrics.all() {
		if err := m.flushSeries(ctx, s); err != nil {
			m.failures.add(ctx, err)
			return false
		}
		if lost := s.lost(); lost > 0 {
			m.failures.log.WarnContext(ctx, "metrics were dropped while they could not be sent",
				slog.String("metric", s.name), slog.Int("values", lost))
		}
	}
	m.failures.ended(ctx)
	return true
}

func (m *metricsReport) flushSeries(ctx context.Context, s *series) error {
	batches := s.take()
	for i, batch := range batches {
		h := m.origin()
		h.Set(header.ContentType, occurrences)
		h.Set(metricType, s.name)
		err := m.send(ctx, m.MetricsQueue, metricsLifetime, h, encode(batch))
		if err == nil {
			continue
		}
		if errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrTooLarge) {
			i++ // it may be there, and must not count twice; or it will never be accepted
		}
		s.putBack(batches[i:])
		return err
	}
	return nil
}

const (
	// lengthInterval is the time between two looks at the length of the queue.
	lengthInterval = 5 * time.Second
	// lengthTimeout is the time that the broker has to answer.
	lengthTimeout = 5 * time.Second
)

// inspector returns the connection as an inspector of queues if this endpoint reports the length of
// its queue itself; otherwise nil: then Monitoring asks the broker. What Monitoring asks a database
// counts delayed messages too, and in PostgreSQL it is the difference of the newest and oldest
// number of a row, so one delayed message makes it huge.
func (s *sender) inspector() transport.Inspector {
	if d, ok := s.transport.(transport.Describer); ok {
		switch d.System() {
		case "rabbitmq", "aws_sqs", "servicebus":
			return nil
		}
	}
	i, _ := s.conn.(transport.Inspector)
	return i
}

// measureLengths measures the length of the queue regularly until ctx ends.
func (m *metricsReport) measureLengths(ctx context.Context) {
	for sleep(ctx, lengthInterval) == nil {
		m.measureLength(ctx)
	}
}

// measureLength adds the number of messages that wait to be received. Delayed messages and those
// that are being processed do not wait.
func (m *metricsReport) measureLength(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, lengthTimeout)
	defer cancel()
	stats, err := m.length.Inspect(limited, m.endpoint)
	if err != nil {
		m.unmeasured.add(ctx, err)
		return
	}
	m.unmeasured.ended(ctx)
	for _, q := range stats {
		if q.Ready >= 0 {
			m.metrics.length.add(time.Now(), q.Ready, m.address)
		}
	}
}
