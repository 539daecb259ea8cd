package endpoint_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A behavior that changes the broker's properties of its copy of a message changes neither the next
// attempt nor the failure.
func TestABehaviorsNativePropertiesAreItsOwn(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var seen harness.Tally
		broker.CreateQueues("sales")
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			seen.Add("failure " + f.Native["colour"])
			clear(f.Native)
			return f.Decide()
		}
		cfg.Pipeline.Receive.Use("clear", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, r *pipeline.Receive) error {
				seen.Add("attempt " + r.Native("colour"))
				clear(r.Message.Native)
				return next(ctx, r)
			}
		})
		harness.Start(t, cfg)
		m := native("Shop.PlaceOrder", "application/json", `{}`)
		m.Native = map[string]string{"colour": "red"}
		if err := broker.Put("sales", m); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		want := []string{"attempt red", "failure red", "attempt red", "failure red"}
		if diff := cmp.Diff(want, seen.List()); diff != "" {
			t.Error(diff)
		}
	})
}
