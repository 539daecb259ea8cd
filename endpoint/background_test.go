package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A function of Background begins when the endpoint can send, and sends until its last handler has
// returned.
func TestABackgroundFunctionRunsAsLongAsTheEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		started := make(chan struct{})
		e, err := endpoint.New(endpoint.Config{
			Name: "shop", Transport: &inmemory.Transport{}, Install: true,
			Messages: []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder").To("shop")},
			Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, PlaceOrder) error {
				close(started)
				time.Sleep(5 * time.Second)
				events = append(events, "handled")
				return nil
			})},
			Background: []func(context.Context, *endpoint.Endpoint){
				func(ctx context.Context, e *endpoint.Endpoint) {
					if err := e.Send(ctx, PlaceOrder{}); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
					events = append(events, "ended")
					time.Sleep(time.Second)
					events = append(events, "returned")
				},
				func(context.Context, *endpoint.Endpoint) {}, // one that returns at once
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			<-started
			stop()
		}()
		if err := e.Run(ctx); err != nil {
			t.Error(err)
		}
		if got := strings.Join(events, ", "); got != "handled, ended, returned" {
			t.Errorf("the order is %s", got)
		}
	})
}

// The panic of a background function is logged, and disturbs no message.
func TestAPanicOfABackgroundFunctionIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		e, err := endpoint.New(endpoint.Config{
			Name: "shop", Transport: &inmemory.Transport{}, Install: true, Logger: slog.New(slog.NewTextHandler(&out, nil)),
			Background: []func(context.Context, *endpoint.Endpoint){
				func(context.Context, *endpoint.Endpoint) { panic(errors.New("oh no")) },
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		began := time.Now()
		if err := e.Run(ctx); err != nil || time.Since(began) < time.Minute {
			t.Errorf("Run returned %v after %v", err, time.Since(began))
		}
		if !strings.Contains(out.String(), "Config.Background panicked") || !strings.Contains(out.String(), "oh no") {
			t.Errorf("logged %s", out.String())
		}
	})
}

// A background function is not called if the endpoint cannot start.
func TestNoBackgroundFunctionWithoutAStart(t *testing.T) {
	e, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Logger: slog.New(slog.DiscardHandler),
		Background: []func(context.Context, *endpoint.Endpoint){
			func(context.Context, *endpoint.Endpoint) { t.Error("it was called") },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Run(t.Context()); err == nil {
		t.Error("an endpoint without queues has run")
	}
	if _, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Background: []func(context.Context, *endpoint.Endpoint){nil},
	}); err == nil || !strings.Contains(err.Error(), "Background[0] is nil") {
		t.Errorf("a nil function: %v", err)
	}
}
