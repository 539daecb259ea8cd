package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// failing answers the first requests of a method, for a name that contains part, by a code. It
// returns the count of these requests.
func (s *standInTopology) failing(method uint32, part string, times int, code uint16, text string) func() int {
	asked := 0
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = func(request uint32, name string) (uint16, string) {
		if request != method || !strings.Contains(name, part) {
			return 0, ""
		}
		if asked++; asked > times {
			return 0, ""
		}
		return code, text
	}
	return func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return asked
	}
}

const notFormed = "INTERNAL_ERROR - Cannot declare a queue on node 'rabbit@one': {error,cluster_not_formed}"

// Each declaration, binding and question is repeated if the broker's answer is about its own state.
func TestRequestsOutlastTheBrokersMoment(t *testing.T) {
	t.Parallel()
	plan := transport.Plan{Queues: []transport.Queue{{Name: "sales"}}, Types: [][]string{{"Shop.Placed", "Shop.Event"}}, Delays: true}
	for _, test := range []struct {
		name   string
		method uint32
		part   string
		code   uint16
		text   string
	}{
		{"a queue", queueDeclare, "sales", 541, notFormed},
		{"a delay level", queueDeclare, "delay-level-03", 541, notFormed},
		{"an exchange", exchangeDeclare, "Shop:Placed", 541, "INTERNAL_ERROR - failed to declare exchange because the operation timed out"},
		{"a binding", exchangeBind, "Shop:Event", 541, "INTERNAL_ERROR - timeout"},
		{"a binding of a queue", queueBind, "sales", 320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"},
		{"a channel", channelOpen, "", 541, "INTERNAL_ERROR"},
		{"a question", queueDeclare, "sales", 404, "NOT_FOUND - failed to perform operation on queue 'sales' in vhost '/' due to timeout"},
		{"a home node", queueDeclare, "sales", 404, "NOT_FOUND - home node 'rabbit@two' of durable queue 'sales' in vhost '/' is down or inaccessible"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := newVersions(t)
			asked := v.b.failing(test.method, test.part, 2, test.code, test.text)
			v.must(v.c.Install(t.Context(), plan))
			if asked() < 3 {
				t.Errorf("the request was made %d times", asked())
			}
			asked = v.b.failing(queueDeclare, "sales", 1, test.code, test.text)
			_, err := v.c.Inspect(t.Context(), "sales")
			v.must(err)
			if asked() != 2 {
				t.Errorf("the question was asked %d times", asked())
			}
		})
	}
}

func TestRefusalsAreNotRepeated(t *testing.T) {
	t.Parallel()
	for code, text := range map[uint16]string{
		403: "ACCESS_REFUSED - access to queue 'sales' refused",
		404: "NOT_FOUND - no queue 'sales' in vhost '/'",
		405: "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'sales'",
	} {
		v := newVersions(t)
		asked := v.b.failing(queueDeclare, "sales", 9, code, text)
		err := v.c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "sales"}}})
		if !isCode(err, int(code)) || asked() != 1 {
			t.Errorf("%d was asked %d times: %v", code, asked(), err)
		}
	}
}

// A receiver outlasts a broker that fails its channel or its consumer for the moment.
func TestAReceiverOutlastsTheBrokersMoment(t *testing.T) {
	t.Parallel()
	for _, method := range []uint32{channelOpen, basicConsume} {
		v := newVersions(t)
		v.must(v.c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "sales"}}}))
		_, err := v.c.Inspect(t.Context(), "sales") // opens the channel for questions
		v.must(err)
		v.b.failing(method, "", 1, 541, notFormed)
		r, err := v.c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "sales"})
		v.must(err)
		r.Window(10)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		for !r.(*receiver).Listening() {
			_, err := v.c.Inspect(ctx, "sales")
			v.must(err)
		}
	}
}

func TestARepetitionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r repetition
		began, attempts := time.Now(), 0
		for r.again(t.Context()) {
			attempts++
		}
		if took := time.Since(began); attempts < 5 || attempts > 20 || took > repeatFor+2*time.Second {
			t.Errorf("%d further attempts in %v", attempts, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for r = (repetition{}); r.again(ctx); {
		}
		if took := time.Since(began); took > repeatFor+3*time.Second {
			t.Errorf("it outlasted its context: %v", took)
		}
	})
}

func TestMomentaryErrors(t *testing.T) {
	t.Parallel()
	open := &brokerConn{Connection: &amqp.Connection{}}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{transport.ErrClosed, false},
		{errors.New("a name is too long"), false},
		{wrap(&amqp.Error{Code: 541, Server: true}, "declare"), true},
		{fmt.Errorf("more: %w", &amqp.Error{Code: 320, Server: true}), true},
		{&amqp.Error{Code: 530, Server: true, Reason: "NOT_ALLOWED"}, false},
		{&amqp.Error{Code: 540, Server: true, Reason: "NOT_IMPLEMENTED"}, false},
		{&amqp.Error{Code: 406, Server: true, Reason: "PRECONDITION_FAILED - inequivalent arg"}, false},
		{&amqp.Error{Code: 404, Server: true, Reason: "NOT_FOUND - no exchange 'x'"}, false},
	} {
		if got := isMomentary(test.err, open); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}
