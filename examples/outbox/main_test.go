package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestMain(m *testing.M) {
	if os.Getenv(asShop) != "" { // the process of the service
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEachOrderIsChargedAndShippedOnce(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), brokertest.Postgres(t), brokertest.RabbitMQ(t), &out); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`^200 orders placed, 200 charges of 200 orders, 5 kills
200 orders shipped by messages with 200 ids; \d+ of them arrived again
$`)
	if !want.MatchString(out.String()) {
		t.Errorf("it printed %q", out.String())
	}
}
