package rabbitmq_test

import (
	"net/url"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// newProxy stands before the broker of a URL.
func newProxy(t *testing.T, broker string) *brokertest.Proxy {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	return brokertest.NewProxy(t, u.Host)
}
