package rabbitmq_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// deliveryLimit is a change of the configuration.
func deliveryLimit(n int) func(*rabbitmq.Transport) {
	return func(tr *rabbitmq.Transport) { tr.DeliveryLimit = n }
}

// deadLetters is the only satellite of a connection.
func deadLetters(t *testing.T, c transport.Conn) transport.Satellite {
	t.Helper()
	all, err := c.(transport.Satellites).Satellites(within(t))
	if err != nil || len(all) != 1 || all[0].Queue != "test.dead-letters" {
		t.Fatalf("satellites: %+v, %v", all, err)
	}
	return all[0]
}

// A message over the delivery limit is kept, with the reason.
func TestMessageOverTheLimitIsKept(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), deliveryLimit(2))
	queue := install(t, c, "orders")
	must(t, dispatch(c, send1(queue, message("poison", "body"))))
	r := receive(t, c, queue, 1)
	for range 3 {
		must(t, next(t, r).Retry(t.Context()))
	}
	nothing(t, r)

	dead := deadLetters(t, c)
	d := next(t, receive(t, c, dead.Queue, 1))
	ops, err := dead.Handle(t.Context(), d.Message())
	var why *transport.DeadLetteredError
	if !errors.As(err, &why) || len(ops) > 0 {
		t.Fatalf("%v, %v", ops, err)
	}
	if diff := cmp.Diff(&transport.DeadLetteredError{Queue: queue, Reason: "delivery_limit", Count: 1}, why); diff != "" {
		t.Errorf("why (-want +got):\n%s", diff)
	}
	if m := d.Message(); m.ID != "poison" || string(m.Body) != "body" {
		t.Errorf("kept is %+v", m)
	}
}

func TestTheLatestDeathIsReported(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), deliveryLimit(1))
	queue := install(t, c, "orders")
	op := send1(queue, message("late", "x"))
	op.After = time.Second // which adds entries to x-death
	must(t, dispatch(c, op))
	r := receive(t, c, queue, 1)
	for range 2 {
		must(t, next(t, r).Retry(t.Context()))
	}
	dead := deadLetters(t, c)
	_, err := dead.Handle(t.Context(), next(t, receive(t, c, dead.Queue, 1)).Message())
	if err == nil || !strings.Contains(err.Error(), queue) || !strings.Contains(err.Error(), "delivery_limit") {
		t.Errorf("why: %v", err)
	}
}

func TestAnExpiredMessageIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	op := send1(queue, message("short", "x"))
	op.TTL = time.Millisecond
	must(t, dispatch(c, op))
	dead := deadLetters(t, c)
	ops, err := dead.Handle(t.Context(), next(t, receive(t, c, dead.Queue, 1)).Message())
	if err != nil || len(ops) > 0 {
		t.Errorf("%v, %v", ops, err)
	}
}

func TestADeadLetterThatSaysNothingIsOneAllTheSame(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	install(t, c, "orders")
	_, err := deadLetters(t, c).Handle(t.Context(), message("stray", "x"))
	if !errors.As(err, new(*transport.DeadLetteredError)) {
		t.Errorf("why: %v", err)
	}
}

// One that the error queue refuses does not hold up the others.
func TestDeadLettersAreMovedSeveralAtOnce(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	install(t, c, "orders")
	if n := deadLetters(t, c).Concurrency; n < 2 {
		t.Errorf("dead letters are moved %d at once", n)
	}
}

// A queue with other arguments is used unchanged, and the log names the difference.
// A queue that NServiceBus has created has none of our arguments.
func TestQueueWithOtherArguments(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	if _, err := rawChannel(t, url).QueueDeclare("test", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	var logs lockedBuffer
	tr := &rabbitmq.Transport{URL: url}
	c, err := tr.Open(within(t), transport.Env{Endpoint: "test", Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	must(t, c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: "test"}}}))
	must(t, dispatch(c, send1("test", message("a", "x"))))
	must(t, next(t, receive(t, c, "test", 1)).Complete(t.Context()))
	must(t, c.Close())
	text := logs.String()
	for _, want := range []string{"used as it is", "another x-d", "none in the place of", "delivery-limit 100", "test.dead-letters"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the log\n%s", want, text)
		}
	}
	if bytes.Count([]byte(text), []byte("used as it is")) != 1 {
		t.Errorf("the log repeats itself\n%s", text)
	}
}

// Without a delivery limit, queues are declared as NServiceBus declares them.
func TestNoLimitQueuesLikeNServiceBus(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, deliveryLimit(-1))
	plan := transport.Plan{Queues: []transport.Queue{{Name: "test"}, {Name: "test.quarantine", Counted: true}}}
	must(t, c.(transport.Installer).Install(within(t), plan))
	raw := rawChannel(t, url)
	for _, q := range plan.Queues {
		if _, err := raw.QueueDeclare(q.Name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := c.(transport.Satellites).Satellites(within(t)); err != nil || len(all) != 0 {
		t.Errorf("satellites: %+v, %v", all, err)
	}
}

func TestThatTheBrokerWouldDropMessagesIsWarnedOf(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	if _, err := rawChannel(t, url).QueueDeclare("test", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	drops := !strings.HasPrefix(versionOf(t, url), "3.")
	for name, limit := range map[string]int{"no limit": rabbitmq.None, "not installed": 0} {
		c, logs := openLogged(t, &rabbitmq.Transport{URL: url, DeliveryLimit: limit})
		if _, err := c.(transport.Satellites).Satellites(within(t)); err != nil {
			t.Error(err)
		}
		receive(t, c, "test", 1)
		receive(t, c, "test", 1) // does not repeat the warning
		must(t, c.Close())
		if n := strings.Count(logs.String(), "after 20 returns"); n > 1 || n == 1 != drops {
			t.Errorf("%s: the log of a broker that drops (%t) says %q", name, drops, logs)
		}
		if hasCommand := strings.Contains(logs.String(), "rabbitmqctl set_policy"); hasCommand != (drops && limit == rabbitmq.None) {
			t.Errorf("%s: the log of a broker that drops (%t) says %q", name, drops, logs)
		}
	}
}

// openLogged connects as endpoint "test" and returns the log too.
func openLogged(t *testing.T, tr *rabbitmq.Transport) (transport.Conn, *lockedBuffer) {
	t.Helper()
	logs := new(lockedBuffer)
	c, err := tr.Open(within(t), transport.Env{Endpoint: "test", Logger: slog.New(slog.NewJSONHandler(logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, logs
}

// Without a delivery limit, older dead letters are received. An endpoint whose queues were created
// with a limit, and which has none now, receives what the broker has moved.
func TestNoLimitOlderDeadLetters(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	install(t, open(t, url, nil), "orders")
	if got := deadLetters(t, open(t, url, deliveryLimit(rabbitmq.None))).Queue; got != "test.dead-letters" {
		t.Errorf("satellite %q", got)
	}
}

// Without a delivery limit, RabbitMQ 4.0 and later drop a message after 20 returns.
// Why there is a deadLetters.
func TestNoLimitBroker4DropsAfter20(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	if _, err := rawChannel(t, url).QueueDeclare("test", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	c := open(t, url, nil)
	must(t, dispatch(c, send1("test", message("a", "x"))))
	r := receive(t, c, "test", 1)
	for range 21 {
		must(t, next(t, r).Retry(t.Context()))
	}
	if strings.HasPrefix(versionOf(t, url), "3.") {
		must(t, next(t, r).Complete(t.Context()))
		return
	}
	waitForReady(t, c, "test", 0)
	nothing(t, r)
}

// versionOf is the broker's version.
func versionOf(t *testing.T, url string) string {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return fmt.Sprint(conn.Properties["version"])
}

// Queues of an endpoint without a name have no dead-letter queue, and the log warns.
// A tool has no endpoint's name, and logs a warning.
func TestEndpointWithoutNameHasNoNet(t *testing.T) {
	t.Parallel()
	for limit, warned := range map[int]bool{0: true, -1: false} {
		var logs lockedBuffer
		tr := &rabbitmq.Transport{URL: brokertest.RabbitMQ(t), DeliveryLimit: limit}
		c, err := tr.Open(within(t), transport.Env{Logger: slog.New(slog.NewTextHandler(&logs, nil))})
		if err != nil {
			t.Fatal(err)
		}
		queue := install(t, c, "orders")
		must(t, c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: queue + ".error", Shared: true}}}))
		must(t, c.Close())
		if n := strings.Count(logs.String(), "without a delivery limit"); (n == 1) != warned {
			t.Errorf("limit %d: the log says\n%s", limit, logs.String())
		}
	}
}

func TestNoDeadLetterQueueBeforeInstall(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	if all, err := c.(transport.Satellites).Satellites(within(t)); err != nil || len(all) != 0 {
		t.Errorf("satellites: %+v, %v", all, err)
	}
}

func TestADeliveryLimitOutOfRangeIsRefused(t *testing.T) {
	for _, n := range []int{-2, 1 << 31} {
		tr := &rabbitmq.Transport{URL: "amqp://127.0.0.1:1", DeliveryLimit: n}
		if _, err := tr.Open(t.Context(), transport.Env{Endpoint: "test"}); err == nil || !strings.Contains(err.Error(), "delivery limit") {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// The policy is the one of docs/transports/rabbitmq.md, but for the limit.
func TestAPolicyIsTheNetOfAQueueThatOthersMade(t *testing.T) {
	t.Parallel()
	node := rabbitmq.OwnNode(t)
	if _, err := rawChannel(t, node.URL).QueueDeclare("test", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(node.URL)
	if err != nil {
		t.Fatal(err)
	}
	node.Control("set_policy", "-p", strings.TrimPrefix(u.Path, "/"), "net", `^test(\.quarantine)?$`, "--apply-to", "queues",
		`{"delivery-limit":2,"dead-letter-exchange":"","dead-letter-routing-key":"test.dead-letters","dead-letter-strategy":"at-least-once","overflow":"reject-publish"}`)
	c := open(t, node.URL, nil)
	must(t, c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: "test"}}}))
	must(t, dispatch(c, send1("test", message("poison", "x"))))
	r := receive(t, c, "test", 1)
	for range 3 {
		must(t, next(t, r).Retry(t.Context()))
	}
	dead := deadLetters(t, c)
	_, err = dead.Handle(t.Context(), next(t, receive(t, c, dead.Queue, 1)).Message())
	if err == nil || !strings.Contains(err.Error(), "delivery_limit") {
		t.Errorf("why: %v", err)
	}
}
