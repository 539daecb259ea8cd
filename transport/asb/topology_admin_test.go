package asb_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

func TestErrorsHaveTheTextOfTheAdministration(t *testing.T) {
	c := open(t, on(brokertest.OwnServiceBus(t)))
	err := c.(transport.Subscriber).Subscribe(within(t), "sales", []string{"Shop.Placed"})
	if err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), "'sales', does not exist") {
		t.Errorf("subscribing a queue that is not there: %v", err)
	}
}

// Libraries that trace HTTP replace it.
func TestAProgramMayHaveAnotherDefaultTransport(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	usual := http.DefaultTransport
	http.DefaultTransport = watched{usual}
	t.Cleanup(func() { http.DefaultTransport = usual })
	install(t, open(t, on(ns)), "in")
}

type watched struct{ http.RoundTripper }
