package endpoint_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// naming is a configuration that names error queues and an audit queue, and creates none.
func naming(broker *inmemory.Transport) endpoint.Config {
	cfg := harness.Sales(broker, failing(&harness.Tally{}))
	cfg.AuditQueue, cfg.Install = "audit", false
	cfg.Recoverability = recoverability.Config{ErrorQueue: "failed", Rules: []recoverability.Rule{
		{Types: []string{"Shop.PlaceOrder"}, ErrorQueue: "orders-failed"},
		{Errors: []recoverability.Matcher{recoverability.Is(errNo)}, Action: recoverability.MoveToError{Queue: "refused"}},
	}}
	return cfg
}

func TestRunMissesTheQueuesThatConfigurationNames(t *testing.T) {
	all := []string{"failed", "orders-failed", "refused", "audit"}
	for _, missing := range append(all, "") {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.CreateQueues("sales")
			for _, queue := range all {
				if queue != missing {
					broker.CreateQueues(queue)
				}
			}
			e, err := endpoint.New(naming(broker))
			if err != nil {
				t.Fatal(err)
			}
			if missing == "" {
				harness.Run(t, e)
				return
			}
			err = e.Run(t.Context())
			if !errors.Is(err, transport.ErrNoQueue) || !strings.Contains(err.Error(), `"`+missing+`"`) ||
				!strings.Contains(err.Error(), "Config.Install or Endpoint.Install") {
				t.Errorf("without %q: Run says %v", missing, err)
			}
		})
	}
}

func TestInstallCreatesTheQueuesThatConfigurationNames(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		e, err := endpoint.New(naming(broker))
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Install(t.Context()); err != nil {
			t.Fatal(err)
		}
		harness.Run(t, e)
	})
}

// An endpoint runs although its queues cannot be verified.
func TestAnEndpointRunsIfQueuesCannotBeVerified(t *testing.T) {
	for name, cannot := range map[string]func(*inmemory.Transport){
		"no inspector": func(broker *inmemory.Transport) { broker.Without = inmemory.Inspector },
		"no right": func(broker *inmemory.Transport) {
			broker.Fail = func(verb, _ string) error {
				if verb == "Inspect" {
					return errors.New("permission denied")
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.CreateQueues("sales")
				cannot(broker)
				var log harness.Log
				cfg := naming(broker)
				cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
				harness.Start(t, cfg)
				if warned := strings.Contains(log.String(), "permission denied"); warned != (name == "no right") {
					t.Errorf("the log says %s", log.String())
				}
			})
		})
	}
}

func TestASendOnlyEndpointNeedsNoErrorQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker)
		cfg.SendOnly, cfg.Install = true, false
		harness.Start(t, cfg).MustSend(harness.ShipOrder{})
		synctest.Wait()
		if got := len(broker.Messages("shipping")); got != 1 {
			t.Errorf("%d messages left, want 1", got)
		}
	})
}

// The queue that a policy names does not exist.
func TestAPolicysOwnQueueIsNotCreatedAndNotMissed(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log harness.Log
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action {
			return recoverability.MoveToError{Queue: "missing-queue"}
		}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if got := len(broker.Messages("error")); got != 1 || len(broker.Messages("missing-queue")) != 0 {
			t.Errorf("the error queue has %d messages, want 1", got)
		}
		if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "missing-queue") {
			t.Errorf("the log says nothing of it:\n%s", log.String())
		}
	})
}
