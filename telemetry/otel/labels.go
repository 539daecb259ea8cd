package otel

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// label holds the attributes of a measurement. Every field has as many values as the program has
// queues, types and handlers; an empty one is omitted.
type label struct {
	operation, destination, message, handler, errorType, errorClass, action, fallback, saga, ignored string
}

// measured holds the attributes of a label as options of the two kinds of instruments.
type measured struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// labels caches the options of labels, so that a measurement allocates nothing.
type labels struct {
	common []attribute.KeyValue

	mu   sync.RWMutex // guards made
	made map[label]measured
}

// maxLabels bounds the cache.
const maxLabels = 2000

func newLabels(endpoint, system string) *labels {
	return &labels{
		common: []attribute.KeyValue{keyEndpoint.String(endpoint), semconv.MessagingSystemKey.String(system)},
		made:   map[label]measured{},
	}
}

func (ls *labels) of(l label) measured {
	ls.mu.RLock()
	m, ok := ls.made[l]
	ls.mu.RUnlock()
	if ok {
		return m
	}
	set := metric.WithAttributeSet(ls.set(l.attributes()...))
	m = measured{[]metric.AddOption{set}, []metric.RecordOption{set}}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(ls.made) < maxLabels {
		ls.made[l] = m
	}
	return m
}

// set returns attrs and the common attributes.
func (ls *labels) set(attrs ...attribute.KeyValue) attribute.Set {
	return attribute.NewSet(append(attrs, ls.common...)...)
}

func (l label) attributes() (attrs []attribute.KeyValue) {
	for _, a := range []attribute.KeyValue{
		semconv.MessagingOperationName(l.operation), semconv.MessagingDestinationName(l.destination),
		keyMessageType.String(l.message), keyHandler.String(l.handler),
		semconv.ErrorTypeKey.String(l.errorType), keyAction.String(l.action),
		keyErrorClass.String(l.errorClass), keyFallback.String(l.fallback),
		keySaga.String(l.saga), keyIgnored.String(l.ignored),
	} {
		if a.Value.AsString() != "" {
			attrs = append(attrs, a)
		}
	}
	return attrs
}
