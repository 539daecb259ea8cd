package rabbitmq

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
)

// standInTopology has the exchanges, the queues and the bindings of a standIn. It counts the
// messages of a queue.
type standInTopology struct {
	mu        sync.Mutex // guards the rest
	exchanges map[string]string
	queues    map[string]int
	bindings  []standInBinding
	// refuse returns the reply to a request, a method of AMQP with the name of a queue or an
	// exchange, and the text. A code of 0 accepts the request.
	refuse func(method uint32, name string) (code uint16, text string)
}

type standInBinding struct {
	source, key, to string
	toQueue         bool
}

// Methods of AMQP 0-9-1.
const (
	channelOpen                     = 20<<16 | 10
	exchangeDeclare, exchangeDelete = 40<<16 | 10, 40<<16 | 20
	exchangeBind, exchangeUnbind    = 40<<16 | 30, 40<<16 | 40
	queueDeclare, queueDelete       = 50<<16 | 10, 50<<16 | 40
	queueBind, queueUnbind          = 50<<16 | 20, 50<<16 | 50
	basicQos, basicConsume          = 60<<16 | 10, 60<<16 | 20
)

func newStandInTopology() *standInTopology {
	return &standInTopology{exchanges: map[string]string{}, queues: map[string]int{}}
}

// standInArguments has the arguments of a request that were not read.
type standInArguments struct{ rest []byte }

func (a *standInArguments) text() string {
	n := int(a.rest[0])
	s := string(a.rest[1 : 1+n])
	a.rest = a.rest[1+n:]
	return s
}

// opens answers a request for a channel that is refused. It reports whether the connection lives.
func (s *standInTopology) opens(c *standInConn, channel uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		if code, text := s.refuse(channelOpen, ""); code != 0 {
			return c.refuse(channel, code, text, 20, 10)
		}
	}
	return true
}

// answer reports whether the connection lives.
func (s *standInTopology) answer(c *standInConn, channel uint16, payload []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	request := binary.BigEndian.Uint32(payload)
	class, id := uint16(request>>16), uint16(request)
	if request == basicQos {
		c.send(frameOf(methodFrame, channel, method(class, id+1)...))
	}
	if class != 40 && class != 50 && request != basicConsume {
		return true
	}
	args := standInArguments{payload[6:]}
	name := args.text()
	if s.refuse != nil {
		if code, text := s.refuse(request, name); code != 0 {
			return c.refuse(channel, code, text, class, id)
		}
	}
	ok := func(arguments ...byte) { c.send(frameOf(methodFrame, channel, method(class, id+1, arguments...)...)) }
	switch request {
	case exchangeDeclare:
		kind := args.text()
		if _, exists := s.exchanges[name]; !exists && args.rest[0]&1 != 0 {
			return c.refuse(channel, 404, "NOT_FOUND - no exchange '"+name+"'", class, id)
		} else if !exists {
			s.exchanges[name] = kind
		}
		ok()
	case queueDeclare:
		if _, exists := s.queues[name]; !exists && args.rest[0]&1 != 0 {
			return c.refuse(channel, 404, "NOT_FOUND - no queue '"+name+"'", class, id)
		} else if !exists {
			s.queues[name] = 0
		}
		count := binary.BigEndian.AppendUint32(nil, uint32(s.queues[name]))
		ok(append(append(append([]byte{byte(len(name))}, name...), count...), 0, 0, 0, 0)...)
	case exchangeBind, exchangeUnbind, queueBind, queueUnbind:
		b := standInBinding{to: name, source: args.text(), toQueue: class == 50}
		b.key = args.text()
		s.bindings = slices.DeleteFunc(s.bindings, func(other standInBinding) bool { return other == b })
		switch request {
		case exchangeBind, queueBind:
			s.bindings = append(s.bindings, b)
			ok()
		case exchangeUnbind:
			c.send(frameOf(methodFrame, channel, method(class, 51)...))
		default:
			ok()
		}
	case exchangeDelete:
		delete(s.exchanges, name)
		ok()
	case queueDelete:
		delete(s.queues, name)
		ok(0, 0, 0, 0)
	case basicConsume:
		ok(append([]byte{byte(len("tag"))}, "tag"...)...)
	}
	return true
}

// refuse closes the channel, or for a hard error the connection, as RabbitMQ does. It reports
// whether the connection lives.
func (c *standInConn) refuse(channel, code uint16, text string, class, id uint16) bool {
	out := append(binary.BigEndian.AppendUint16(nil, code), byte(len(text)))
	out = append(out, text...)
	out = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(out, class), id)
	if code >= 500 || code == 320 {
		c.send(frameOf(methodFrame, 0, method(10, 50, out...)...))
		return false
	}
	c.send(frameOf(methodFrame, channel, method(20, 40, out...)...))
	return true
}

// declare makes an exchange and its bindings from sources, as other clients do.
func (s *standInTopology) declare(exchange string, sources ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchanges[exchange] = "fanout"
	for _, source := range sources {
		s.bindings = append(s.bindings, standInBinding{source: source, to: exchange})
	}
}

// subscriber makes a queue with its exchange, bound to those of types.
func (s *standInTopology) subscriber(queue string, sources ...string) {
	s.declare(queue, sources...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[queue] = 0
	s.bindings = append(s.bindings, standInBinding{source: queue, to: queue, toQueue: true})
}

// count returns the number of messages that a queue has got.
func (s *standInTopology) count(queue string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[queue]
}

// route gives each queue that a message is routed to one copy.
func (s *standInTopology) route(exchange, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if exchange == "" {
		s.queues[key]++
		return
	}
	exchanges, queues := []string{exchange}, map[string]bool{}
	for i := 0; i < len(exchanges); i++ {
		for _, b := range s.bindings {
			if b.source != exchanges[i] || s.exchanges[b.source] == "topic" && !topicMatches(b.key, key) {
				continue
			}
			if b.toQueue {
				queues[b.to] = true
			} else if !slices.Contains(exchanges, b.to) {
				exchanges = append(exchanges, b.to)
			}
		}
	}
	for queue := range queues {
		s.queues[queue]++
	}
}

// topicMatches reports whether the pattern of a topic exchange matches a key.
func topicMatches(pattern, key string) bool {
	return wordsMatch(strings.Split(pattern, "."), strings.Split(key, "."))
}

func wordsMatch(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return wordsMatch(pattern[1:], key) || len(key) > 0 && wordsMatch(pattern, key[1:])
	default:
		return len(key) > 0 && (pattern[0] == "*" || pattern[0] == key[0]) && wordsMatch(pattern[1:], key[1:])
	}
}
