package saga_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/saga"
)

// A key function that hangs takes one slot: messages for other instances are handled.
func TestAHangingKeyHoldsUpNoInstance(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		release := make(chan struct{})
		key := func(m placeOrder) string {
			if m.ID == "bad" {
				<-release
			}
			return m.ID
		}
		orders := saga.New[order]("orders", saga.Start(key, func(_ context.Context, c *orderContext, _ placeOrder) error {
			c.State.Items++
			return nil
		}))
		s.start(orders.Handlers()...)
		for _, id := range []string{"bad", "1"} {
			if err := s.SendLocal(t.Context(), placeOrder{id}); err != nil {
				t.Fatal(err)
			}
		}
		sleep(15 * time.Second)
		s.wantState("1", order{Items: 1})
		if text := fmt.Sprint(s.Health().Warnings); !strings.Contains(text, "the key function of saga_test.") {
			t.Errorf("warnings: %s", text)
		}
		close(release)
		s.wait()
		s.wantState("bad", order{Items: 1})
		s.wantFailures(0)
	})
}
