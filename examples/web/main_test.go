package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestARefusedOrderSendsNothing(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), brokertest.Postgres(t), &out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "order 1 was placed\norder 2 was placed\n"; got != want {
		t.Errorf("it printed %q, want %q", got, want)
	}
}
