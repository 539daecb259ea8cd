package servicecontrol

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

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
