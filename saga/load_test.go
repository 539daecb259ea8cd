package saga_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A state that cannot be loaded, while the database stores others, fails its message only: an
// earlier handler may have changed the transaction. The errors are those of an outage.
func TestALoadThatAlwaysFails(t *testing.T) {
	for name, always := range map[string]error{"unreachable": transport.ErrUnreachable, "denied": transport.ErrDenied} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shop{t: t, broker: &inmemory.Transport{}, db: &inmemory.Transport{}}
				s.broker.CreateQueues("error")
				bad, calls := uuid.Text(saga.ID("sales", "orders", "bad")), 0
				s.db.Fail = func(verb, object string) error {
					if verb == "Load" && object == bad {
						calls++
						return fmt.Errorf("load: %w", always)
					}
					return nil
				}
				s.start(orders().Handlers()...)
				for _, id := range []string{"bad", "good"} {
					if err := s.SendLocal(t.Context(), placeOrder{id}); err != nil {
						t.Fatal(err)
					}
				}
				sleep(time.Minute)
				s.wantFailures(1)
				s.wantState("good", order{Seen: []string{"placed"}})
				if h := s.Health(); !h.Ready {
					t.Errorf("health is %+v", h)
				}
				if calls != 11 {
					t.Errorf("%d loads, want 11: ten are repeated", calls)
				}
			})
		})
	}
}
