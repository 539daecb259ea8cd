package rabbitmq_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// limited is the URL of a user with these rights in the node's virtual host.
func limited(t *testing.T, node brokertest.RabbitMQNode, configure, write, read string) string {
	t.Helper()
	u, err := url.Parse(node.URL)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(brokertest.Name(t, "user"), "holdfast-")
	node.AddUser(name, "s3cret", configure, write, read)
	u.User = url.UserPassword(name, "s3cret")
	return u.String()
}

// says checks that an error names the cause, soon and without the user.
func says(t *testing.T, err error, since time.Time, want ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("no %q in the error %q", text, err)
		}
	}
	if strings.Contains(err.Error(), "-user") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error %q tells the user or the password", err)
	}
	if took := time.Since(since); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// Without the right to configure, errors name the missing parts.
func TestMissingRightToConfigure(t *testing.T) {
	t.Parallel()
	node := rabbitmq.OwnNode(t)
	url := limited(t, node, "^$", ".*", ".*")
	for name, topology := range topologies {
		t.Run(name, func(t *testing.T) {
			admin := open(t, node.URL, topology)
			queue := install(t, admin, "orders")
			plan := transport.Plan{Types: [][]string{{"Shop.OrderPlaced"}}, Delays: true}
			must(t, admin.(transport.Installer).Install(within(t), plan))

			c := open(t, url, topology)
			r := receive(t, c, queue, 10)
			must(t, c.(transport.Subscriber).Subscribe(within(t), queue, []string{"Shop.OrderPlaced"}))
			late := send1(queue, message("late", "x"))
			late.After = time.Second
			must(t, dispatch(c, send1(queue, message("sent", "x")), publish1(message("published", "x"), "Shop.OrderPlaced"), late))
			for _, want := range []string{"sent", "published", "late"} {
				d := next(t, r)
				if d.Message().ID != want {
					t.Errorf("received %q, want %q", d.Message().ID, want)
				}
				must(t, d.Complete(t.Context()))
			}
			must(t, c.(transport.Subscriber).Unsubscribe(within(t), queue, []string{"Shop.OrderPlaced"}))

			start := time.Now()
			err := c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: "new"}}})
			says(t, err, start, "ACCESS_REFUSED", "test.dead-letters", "right to configure")
			says(t, rabbitmq.InstallDelays(within(t), c), start, "ACCESS_REFUSED", rabbitmq.LostQueue, "right to configure")
		})
	}
	t.Run("what is missing", func(t *testing.T) {
		for name, test := range map[string]struct {
			topology func(*rabbitmq.Transport)
			exchange string
		}{
			"conventional": {nil, "Shop:Missing"},
			"direct": {func(tr *rabbitmq.Transport) {
				tr.Topology, tr.TopicExchange = rabbitmq.Direct, "shop.missing"
			}, "shop.missing"},
		} {
			t.Run(name, func(t *testing.T) {
				c := open(t, url, test.topology)
				start := time.Now()
				says(t, dispatch(c, publish1(message("a", "x"), "Shop.Missing")), start, test.exchange, "404", "403", "Install")
				says(t, c.(transport.Subscriber).Subscribe(within(t), "orders", []string{"Shop.Missing"}), start, test.exchange, "Install")
			})
		}
	})
}

func TestWithoutTheRightToReadOrWriteTheErrorSaysSo(t *testing.T) {
	t.Parallel()
	node := rabbitmq.OwnNode(t)
	queue := install(t, open(t, node.URL, nil), "orders")

	mute := open(t, limited(t, node, "^$", "^$", ".*"), nil)
	start := time.Now()
	err := dispatch(mute, send1(queue, message("a", "x")))
	says(t, err, start, "ACCESS_REFUSED", "amq.default", "right to write")
	if errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("a refusal is taken for something else: %v", err)
	}

	deaf := open(t, limited(t, node, "^$", ".*", "^$"), nil)
	must(t, dispatch(deaf, send1(queue, message("b", "x"))))
	start = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := deaf.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err == nil { // consuming begins with the window
		r.Window(1)
		_, err = r.Receive(ctx, 1)
	}
	says(t, err, start, "ACCESS_REFUSED", queue)

	if got := next(t, receive(t, open(t, node.URL, nil), queue, 1)).Message().ID; got != "b" {
		t.Errorf("the queue has %q", got)
	}
}
