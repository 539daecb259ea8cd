package asb_test

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

func TestWhatTheAdministrationSaysIsTold(t *testing.T) {
	c := open(t, on(brokertest.OwnServiceBus(t)))
	err := c.(transport.Subscriber).Subscribe(within(t), "sales", []string{"Shop.Placed"})
	if err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), "'sales', does not exist") {
		t.Errorf("subscribing a queue that is not there: %v", err)
	}
}
