package endpoint_test

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	baseOrder  struct{ ID string }
	rushOrder  struct{ ID string }
	lostOrder  struct{ ID string }
	otherOrder struct{ ID string }
)

// A message has a handler if one takes its type or a base of it.
func TestHandlesLooksAtBasesToo(t *testing.T) {
	handler := endpoint.Handle(func(context.Context, *endpoint.Session, baseOrder) error { return nil })
	cfg := endpoint.Config{
		Name: "sales", Transport: &inmemory.Transport{}, Handlers: []endpoint.Handler{handler},
		Messages: []endpoint.Message{
			endpoint.Command[baseOrder]("Shop.Base"), endpoint.Command[rushOrder]("Shop.Rush", "Shop.Base"), endpoint.Command[lostOrder]("Shop.Lost"),
		},
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for m, want := range map[any]bool{
		baseOrder{}: true, rushOrder{}: true, lostOrder{}: false, otherOrder{}: false, nil: false, (*baseOrder)(nil): false,
	} {
		if got := e.Handles(m); got != want {
			t.Errorf("%T: %v, want %v", m, got, want)
		}
	}
	for m, want := range map[any]string{rushOrder{}: "", lostOrder{}: "lostOrder to the endpoint's own queue: no handler", otherOrder{}: "not registered"} {
		cfg.Handlers = []endpoint.Handler{handler.SendsLocal(m)}
		if _, err := endpoint.New(cfg); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("SendsLocal(%T): %v, want %q", m, err, want)
		}
	}
}
